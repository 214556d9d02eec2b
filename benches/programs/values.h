/* The entries: their keys and values are known to all ranks, so that every byte of a get can be checked. A value is a
 * part of one long random text, so that computing it costs next to nothing during a measurement. */
#ifndef VALUES_H
#define VALUES_H

#include "client.h"

enum { TEXT_STARTS = 4096 };

static struct {
    char text[TEXT_STARTS + VALUE_BYTES_MAX];
    char key[KEY_BYTES];
    char value[VALUE_BYTES_MAX + 1];
} entry;

static inline uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Must be called first. */
static inline void values_init(void)
{
    uint64_t seed = 0x2545f4914f6cdd1du;
    for (size_t i = 0; i < sizeof entry.text; i++)
        entry.text[i] = (char)('a' + next_random(&seed) % 26);
    memset(entry.value, 0, sizeof entry.value);
}

/* Writes the key of entry `id`: the entries of rank r begin at r * page->keys. */
static inline const char *key_of(uint64_t id, const char *prefix, char *into)
{
    char digits[20];
    size_t count = 0, length = strlen(prefix);
    memcpy(into, prefix, length);
    do {
        digits[count++] = (char)('0' + id % 10);
        id /= 10;
    } while (id);
    while (count)
        into[length++] = digits[--count];
    into[length] = 0;
    return into;
}

static inline const char *value_of(const struct page *page, uint64_t id, size_t *length)
{
    uint64_t hash = (id + 1) * 0x9e3779b97f4a7c15u;
    *length = (size_t)(page->value_min + (hash >> 32) % (page->value_max - page->value_min + 1));
    return entry.text + id % TEXT_STARTS;
}

static inline void put_entry(const struct page *page, uint64_t id)
{
    size_t length;
    const char *value = value_of(page, id, &length);
    memcpy(entry.value, value, length);
    entry.value[length] = 0;
    client_put(key_of(id, "card-", entry.key), entry.value);
}

/* Gets an entry and compares every byte. */
static inline void get_entry(const struct page *page, uint64_t id)
{
    size_t length;
    const char *value = value_of(page, id, &length);
    entry.value[0] = 0;
    if (!client_get(key_of(id, "card-", entry.key), entry.value, sizeof entry.value)
        || memcmp(entry.value, value, length) != 0 || entry.value[length] != 0)
        wrong |= WRONG_VALUE;
}

#endif
