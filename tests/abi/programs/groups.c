/* Groups of ranks wait for each other (PMI-1.2's PMI_Barrier_group) and see each other's values at once; the others see
 * them after the next barrier of all. Threads wait in several barriers at a time. */
#include "either.h"

#include <pthread.h>

#define ROUNDS 3
#define THREADS 3
#define THREAD_ROUNDS 10

static void name(char *text, int who, int round)
{
    sprintf(text, "r%d-%d", who, round);
}

/* The ranks whose numbers have this rank's remainder, in descending order. */
static int members(int group[], int groups)
{
    int count = 0;
    for (int other = size - 1; other >= 0; other--)
        if (other % groups == rank % groups)
            group[count++] = other;
    return count;
}

/* Each thread has a group of its own. No thread waits for another one of its process, so the order in which a rank enters
 * the barriers differs from that of others. */
static void *work(void *argument)
{
    const char *tag = argument;
    int group[64];
    for (int round = 0; round < THREAD_ROUNDS; round++) {
        char key[64];
        int count = members(group, 1);
        sprintf(key, "%s%d-%d", tag, rank, round);
        put(key, key);
        must(PMI_Barrier_group(group, count, tag), "a thread's group");
        sprintf(key, "%s%d-%d", tag, group[0], round);
        expect(key, key);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t threads[THREADS];
    char *tags[THREADS] = {"x", "y", "z"};
    for (int thread = 0; thread < THREADS; thread++)
        pthread_create(&threads[thread], NULL, work, tags[thread]);
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
}

int main(void)
{
    int group[64];
    char key[64];
    begin();
    must(PMI_Barrier_group(PMI_GROUP_SELF, 0, NULL), "the group of this rank");
    must(PMI_Barrier_group(PMI_GROUP_NODE, 0, "node"), "the group of the node");
    if (PMI_Barrier_group(&size, 1, NULL) != PMI_ERR_INVALID_ARG)
        must(1, "a rank that does not exist");
    for (int round = 0; round < ROUNDS; round++) {
        /* All ranks, then every second, third ... */
        int count = members(group, round + 1);
        name(key, rank, round);
        put(key, key);
        must(PMI_Barrier_group(group, count, round == 1 ? "tag" : NULL), "a group");
        for (int at = 0; at < count; at++) {
            name(key, group[at], round);
            expect(key, key);
        }
    }
    must(PMI_Barrier_group(PMI_GROUP_WORLD, 0, NULL), "all ranks");
    for (int other = 0; other < size; other++)
        for (int round = 0; round < ROUNDS; round++) {
            name(key, other, round);
            expect(key, key);
        }
    must(PMI_Barrier_group(PMI_GROUP_WORLD, 0, "tag"), "all ranks with a tag");
    threads();
    printf("%d: groups exchanged\n", rank);
    end();
    return 0;
}
