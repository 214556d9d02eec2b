/* Forked children call PMI as if they were the rank: each call must fail without hanging, and the rank must not be
 * disturbed. Another thread is inside the library during the forks. */
#include "either.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define CHILDREN 20

static atomic_int is_over;

static void *get_repeatedly(void *argument)
{
    (void)argument;
    while (!is_over)
        expect("own", "value");
    return NULL;
}

/* Returns the number of calls that succeeded. */
static int successes(void)
{
    char value[VALUE_BYTES];
    int count = 0;
    alarm(10); /* SIGALRM kills a child that hangs. */
    count += try_put("child", "value") == 0;
    count += try_get("own", value) == 0;
    count += try_get("absent", value) == 0;
    count += try_fence() == 0;
    return count;
}

int main(void)
{
    pthread_t thread;
    char key[64];
    begin();
    put("own", "value");
    fence();
    pthread_create(&thread, NULL, get_repeatedly, NULL);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        int status;
        if (child == 0) {
            int count = successes();
            /* The code does not matter, but the call must return and send nothing to the launcher. */
            if (i % 2)
                try_end();
            _exit(count);
        }
        waitpid(child, &status, 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            printf("%d: a child ended with status %d\n", rank, status);
            return 1;
        }
    }
    is_over = 1;
    pthread_join(thread, NULL);
    sprintf(key, "after-%d", rank);
    put(key, key);
    fence();
    sprintf(key, "after-%d", (rank + 1) % size);
    expect(key, key);
    end();
    printf("%d: went on\n", rank);
    return 0;
}
