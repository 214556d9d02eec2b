/* Threads put and get continuously while one of them calls fences. */
#include "either.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define ROUNDS 20
#define TIMES 50

static pthread_barrier_t round_begins, round_ends;
static atomic_int stopping;

static void name(char *text, int who, int thread, int round)
{
    sprintf(text, "r%d-t%d-%d", who, thread, round);
}

/* All values of earlier rounds must be found, whatever other threads do. */
static void get_all(int rounds)
{
    char key[64];
    for (int round = 0; round < rounds; round++)
        for (int thread = 1; thread < THREADS; thread++) {
            name(key, (rank + round) % size, thread, round);
            expect(key, key);
        }
}

static void *work(void *argument)
{
    int thread = (int)(long)argument;
    char key[64];
    for (int round = 0; round < ROUNDS; round++) {
        name(key, rank, thread, round);
        put(key, key);
        pthread_barrier_wait(&round_begins);
        /* The main thread is in its fence. */
        for (int time = 0; time < TIMES && !stopping; time++) {
            get_all(round < 3 ? round : 3);
            if (try_get("absent", (char[VALUE_BYTES]){0}) == 0)
                must(1, "a get of nothing");
        }
        pthread_barrier_wait(&round_ends);
        name(key, (rank + 1) % size, thread, round);
        expect(key, key);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    begin();
    pthread_barrier_init(&round_begins, NULL, THREADS);
    pthread_barrier_init(&round_ends, NULL, THREADS);
    for (long thread = 1; thread < THREADS; thread++)
        pthread_create(&threads[thread], NULL, work, (void *)thread);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&round_begins);
        fence();
        stopping = 1;
        pthread_barrier_wait(&round_ends);
        stopping = 0;
    }
    for (int thread = 1; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
    get_all(ROUNDS);
    end();
    printf("%d: all was found\n", rank);
    return 0;
}
