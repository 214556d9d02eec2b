/*
 * Calls each function of PMI-1 before PMI_Init, with arguments of all kinds, in a normal sequence,
 * and after PMI_Finalize. See walk.h. Runs as all ranks of a job of at least two.
 */
#define WALK_CODE_14 "INVALID_KVS"
#include "walk.h"

#include <pmi.h>

static int size, rank, spawned, initialized, n, length, key_max, value_max, name_max, id_max;
static char own[ROOM];               /* the name of the job's own space */
static char text[ROOM], other[ROOM]; /* for outputs */
static int ranks[4096];

static void before(void)
{
    int parsed = 0, count = 0;
    char *arguments[] = {"-key", "value", NULL};
    PMI_keyval_t *pairs = NULL;
    NUMBER("PMI_Initialized", PMI_Initialized(&initialized), initialized);
    APART("PMI_Initialized.null", PMI_Initialized(NULL));
    APART("PMI_Get_size", PMI_Get_size(&n));
    APART("PMI_Get_size.null", PMI_Get_size(NULL));
    APART("PMI_Get_rank", PMI_Get_rank(&n));
    APART("PMI_Get_universe_size", PMI_Get_universe_size(&n));
    APART("PMI_Get_appnum", PMI_Get_appnum(&n));
    APART("PMI_Get_id_length_max", PMI_Get_id_length_max(&n));
    APART("PMI_Get_id", PMI_Get_id(text, ROOM));
    APART("PMI_Get_id.null", PMI_Get_id(NULL, ROOM));
    APART("PMI_Get_kvs_domain_id", PMI_Get_kvs_domain_id(text, ROOM));
    APART("PMI_Get_clique_size", PMI_Get_clique_size(&n));
    APART("PMI_Get_clique_ranks", PMI_Get_clique_ranks(ranks, 4096));
    APART("PMI_Barrier", PMI_Barrier());
    APART("PMI_KVS_Get_my_name", PMI_KVS_Get_my_name(text, ROOM));
    NUMBER("PMI_KVS_Get_name_length_max", PMI_KVS_Get_name_length_max(&n), n);
    NUMBER("PMI_KVS_Get_key_length_max", PMI_KVS_Get_key_length_max(&n), n);
    NUMBER("PMI_KVS_Get_value_length_max", PMI_KVS_Get_value_length_max(&n), n);
    APART("PMI_KVS_Create", PMI_KVS_Create(text, ROOM));
    APART("PMI_KVS_Destroy", PMI_KVS_Destroy("kvs"));
    APART("PMI_KVS_Put", PMI_KVS_Put("kvs", "key", "value"));
    APART("PMI_KVS_Commit", PMI_KVS_Commit("kvs"));
    APART("PMI_KVS_Get", PMI_KVS_Get("kvs", "key", text, ROOM));
    APART("PMI_KVS_Iter_first", PMI_KVS_Iter_first("kvs", text, ROOM, other, ROOM));
    APART("PMI_KVS_Iter_next", PMI_KVS_Iter_next("kvs", text, ROOM, other, ROOM));
    APART("PMI_Publish_name", PMI_Publish_name("service", "port"));
    APART("PMI_Lookup_name", PMI_Lookup_name("service", text));
    APART("PMI_Unpublish_name", PMI_Unpublish_name("service"));
    APART("PMI_Spawn_multiple.null", PMI_Spawn_multiple(0, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL));
    APART("PMI_Parse_option", PMI_Parse_option(2, arguments, &parsed, &pairs, &count));
    APART("PMI_Free_keyvals.none", PMI_Free_keyvals(NULL, 0));
    APART("PMI_Finalize", PMI_Finalize());
}

static void init(void)
{
    APART("PMI_Init.null", PMI_Init(NULL));
    NUMBER("PMI_Init", PMI_Init(&spawned), spawned);
    NUMBER("PMI_Initialized", PMI_Initialized(&initialized), initialized);
    NUMBER("PMI_Init.twice", PMI_Init(&spawned), spawned);
    if (PMI_Get_rank(&rank) != PMI_SUCCESS || PMI_Get_size(&size) != PMI_SUCCESS) {
        line("world", "unknown");
        exit(1);
    }
    PMI_KVS_Get_name_length_max(&name_max);
    PMI_KVS_Get_key_length_max(&key_max);
    PMI_KVS_Get_value_length_max(&value_max);
    PMI_Get_id_length_max(&id_max);
    if (PMI_KVS_Get_my_name(own, ROOM) != PMI_SUCCESS)
        line("own_name", "unknown");
    walk_known_text = own;
    walk_known_kind = "<own name>";
    if (rank != walk_rank)
        line("rank", "not that of the environment");
}

static void world(void)
{
    NUMBER("PMI_Get_size", PMI_Get_size(&n), n);
    CODE("PMI_Get_size.null", PMI_Get_size(NULL));
    CODE("PMI_Get_rank.null", PMI_Get_rank(NULL));
    CODE("PMI_Get_universe_size.null", PMI_Get_universe_size(NULL));
    CHECK("PMI_Get_universe_size", PMI_Get_universe_size(&n), note(n >= size ? " enough" : " too few"));
    CHECK("PMI_Get_appnum", PMI_Get_appnum(&n), note(n == 0 ? " 0" : n > 0 ? " <number>" : " negative"));
    CODE("PMI_Get_appnum.null", PMI_Get_appnum(NULL));
    CODE("PMI_Get_id_length_max.null", PMI_Get_id_length_max(NULL));
    CHECK("PMI_Get_id_length_max", PMI_Get_id_length_max(&n), note(n >= 16 ? " enough" : " short"));

    TEXT("PMI_Get_id", PMI_Get_id(text, id_max), text, id_max);
    TEXT("PMI_Get_id.long", PMI_Get_id(text, ROOM / 2), text, ROOM / 2);
    TEXT("PMI_Get_id.short", PMI_Get_id(text, id_max - 1), text, id_max - 1);
    TEXT("PMI_Get_id.length_1", PMI_Get_id(text, 1), text, 1);
    TEXT("PMI_Get_id.length_0", PMI_Get_id(text, 0), text, 0);
    TEXT("PMI_Get_id.length_negative", PMI_Get_id(text, -1), text, -1);
    CODE("PMI_Get_id.null", PMI_Get_id(NULL, id_max));
    CODE("PMI_Get_id.null_and_short", PMI_Get_id(NULL, 0));
    TEXT("PMI_Get_kvs_domain_id", PMI_Get_kvs_domain_id(text, id_max), text, id_max);
    TEXT("PMI_Get_kvs_domain_id.short", PMI_Get_kvs_domain_id(text, id_max - 1), text, id_max - 1);
    CODE("PMI_Get_kvs_domain_id.null", PMI_Get_kvs_domain_id(NULL, id_max));

    CODE("PMI_Get_clique_size.null", PMI_Get_clique_size(NULL));
    CODE("PMI_Get_clique_ranks.null", PMI_Get_clique_ranks(NULL, 4096));
    walk_everyone = 1;
    NUMBER("PMI_Get_rank", PMI_Get_rank(&n), n);
    NUMBER("PMI_Get_clique_size", PMI_Get_clique_size(&n), n);
    int members = n > 0 && n < 4096 ? n : 0;
    for (int i = 0; i < 4096; i++)
        ranks[i] = UNTOUCHED;
    CHECK("PMI_Get_clique_ranks", PMI_Get_clique_ranks(ranks, members), {
        for (int i = 0; i <= members; i++)
            note_number("", ranks[i]);
    });
    CODE("PMI_Get_clique_ranks.long", PMI_Get_clique_ranks(ranks, 4096));
    CODE("PMI_Get_clique_ranks.short", PMI_Get_clique_ranks(ranks, members - 1));
    CODE("PMI_Get_clique_ranks.length_0", PMI_Get_clique_ranks(ranks, 0));
    CODE("PMI_Get_clique_ranks.length_negative", PMI_Get_clique_ranks(ranks, -1));
}

static void spaces(void)
{
    NUMBER("PMI_KVS_Get_name_length_max", PMI_KVS_Get_name_length_max(&n), n);
    NUMBER("PMI_KVS_Get_key_length_max", PMI_KVS_Get_key_length_max(&n), n);
    NUMBER("PMI_KVS_Get_value_length_max", PMI_KVS_Get_value_length_max(&n), n);
    CODE("PMI_KVS_Get_name_length_max.null", PMI_KVS_Get_name_length_max(NULL));
    CODE("PMI_KVS_Get_key_length_max.null", PMI_KVS_Get_key_length_max(NULL));
    CODE("PMI_KVS_Get_value_length_max.null", PMI_KVS_Get_value_length_max(NULL));
    int exact = (int)strlen(own) + 1;
    TEXT("PMI_KVS_Get_my_name", PMI_KVS_Get_my_name(text, name_max), text, name_max);
    TEXT("PMI_KVS_Get_my_name.exact", PMI_KVS_Get_my_name(text, exact), text, exact);
    CODE("PMI_KVS_Get_my_name.short", PMI_KVS_Get_my_name(text, exact - 1));
    TEXT("PMI_KVS_Get_my_name.length_0", PMI_KVS_Get_my_name(text, 0), text, 0);
    TEXT("PMI_KVS_Get_my_name.length_negative", PMI_KVS_Get_my_name(text, -1), text, -1);
    CODE("PMI_KVS_Get_my_name.null", PMI_KVS_Get_my_name(NULL, name_max));

    CODE("PMI_KVS_Create.null", PMI_KVS_Create(NULL, name_max));
    CODE("PMI_KVS_Create.length_0", PMI_KVS_Create(text, 0));
    CODE("PMI_KVS_Create.length_1", PMI_KVS_Create(text, 1));
    CHECK("PMI_KVS_Create", PMI_KVS_Create(other, name_max), note(strcmp(other, own) ? " another name" : " own name"));
    if (PMI_KVS_Create(other, name_max) == PMI_SUCCESS) {
        CODE("PMI_KVS_Put.created", PMI_KVS_Put(other, "key", "value"));
        TEXT("PMI_KVS_Get.created", PMI_KVS_Get(other, "key", text, value_max), text, value_max);
        CODE("PMI_KVS_Get.created_elsewhere", PMI_KVS_Get(own, "key", text, value_max));
        CODE("PMI_KVS_Destroy", PMI_KVS_Destroy(other));
        CODE("PMI_KVS_Destroy.twice", PMI_KVS_Destroy(other));
        CODE("PMI_KVS_Put.destroyed", PMI_KVS_Put(other, "key", "value"));
    }
    CODE("PMI_KVS_Destroy.null", PMI_KVS_Destroy(NULL));
    CODE("PMI_KVS_Destroy.unknown", PMI_KVS_Destroy("unknown"));
}

static void arguments(void)
{
    CODE("PMI_KVS_Put.null_kvs", PMI_KVS_Put(NULL, "key", "value"));
    CODE("PMI_KVS_Put.null_key", PMI_KVS_Put(own, NULL, "value"));
    CODE("PMI_KVS_Put.null_value", PMI_KVS_Put(own, "key-null-value", NULL));
    CODE("PMI_KVS_Put.all_null", PMI_KVS_Put(NULL, NULL, NULL));
    CODE("PMI_KVS_Put.unknown_kvs", PMI_KVS_Put("unknown", "key", "value"));
    CODE("PMI_KVS_Put.empty_kvs", PMI_KVS_Put("", "key", "value"));
    CODE("PMI_KVS_Put.kvs_of_max", PMI_KVS_Put(text_of(name_max, 'n'), "key", "value"));
    CODE("PMI_KVS_Put.key_of_max", PMI_KVS_Put(own, text_of(key_max, 'k'), "value"));
    CODE("PMI_KVS_Put.key_of_max_and_1", PMI_KVS_Put(own, text_of(key_max + 1, 'k'), "value"));
    CODE("PMI_KVS_Put.value_of_max", PMI_KVS_Put(own, "key-value-max", text_of(value_max, 'v')));
    CODE("PMI_KVS_Put.value_of_max_and_1", PMI_KVS_Put(own, "key-value-max-1", text_of(value_max + 1, 'v')));

    CODE("PMI_KVS_Commit.null", PMI_KVS_Commit(NULL));
    CODE("PMI_KVS_Commit.unknown", PMI_KVS_Commit("unknown"));
    CODE("PMI_KVS_Commit.nothing", PMI_KVS_Commit(own));

    CODE("PMI_KVS_Get.null_kvs", PMI_KVS_Get(NULL, "key", text, value_max));
    CODE("PMI_KVS_Get.null_key", PMI_KVS_Get(own, NULL, text, value_max));
    CODE("PMI_KVS_Get.null_value", PMI_KVS_Get(own, "key", NULL, value_max));
    CODE("PMI_KVS_Get.unknown_kvs", PMI_KVS_Get("unknown", "key", text, value_max));
    CODE("PMI_KVS_Get.kvs_of_max", PMI_KVS_Get(text_of(name_max, 'n'), "key", text, value_max));
    CODE("PMI_KVS_Get.key_of_max", PMI_KVS_Get(own, text_of(key_max, 'k'), text, value_max));
    CODE("PMI_KVS_Get.absent", PMI_KVS_Get(own, "absent", text, value_max));
    CODE("PMI_KVS_Get.length_0", PMI_KVS_Get(own, "absent", text, 0));
    CODE("PMI_KVS_Get.length_negative", PMI_KVS_Get(own, "absent", text, -1));
}

/* Each rank's puts are visible to all ranks. */
static void exchange(void)
{
    char key[64], value[64];
    snprintf(key, sizeof key, "exchange-%d", rank);
    snprintf(value, sizeof value, "value-of-%d", rank);
    CODE("PMI_KVS_Put", PMI_KVS_Put(own, key, value));
    TEXT("PMI_KVS_Get.own_before_commit", PMI_KVS_Get(own, key, text, value_max), text, value_max);
    CODE("PMI_KVS_Commit", PMI_KVS_Commit(own));
    CODE("PMI_Barrier", PMI_Barrier());
    walk_everyone = 1;
    for (int who = 0; who < size; who++) {
        snprintf(key, sizeof key, "exchange-%d", who);
        TEXT(numbered("PMI_KVS_Get.of_%d", who), PMI_KVS_Get(own, key, text, value_max), text, value_max);
    }
    TEXT("PMI_KVS_Get.absent", PMI_KVS_Get(own, "exchange-absent", text, value_max), text, value_max);
    snprintf(key, sizeof key, "exchange-%d", (rank + 1) % size);
    int exact = (int)strlen(value) + 1;
    TEXT("PMI_KVS_Get.exact", PMI_KVS_Get(own, key, text, exact), text, exact);
    TEXT("PMI_KVS_Get.short", PMI_KVS_Get(own, key, text, exact - 1), text, exact - 1);
    TEXT("PMI_KVS_Get.length_1", PMI_KVS_Get(own, key, text, 1), text, 1);
    TEXT("PMI_KVS_Get.length_0", PMI_KVS_Get(own, key, text, 0), text, 0);
    APART("PMI_KVS_Get.length_negative", PMI_KVS_Get(own, key, text, -1));
    walk_everyone = 0;

    /* A second round, in which only one rank puts. */
    if (rank == size - 1) {
        PMI_KVS_Put(own, "exchange-second", "of-the-last");
        PMI_KVS_Commit(own);
    }
    CODE("PMI_Barrier.second", PMI_Barrier());
    TEXT("PMI_KVS_Get.second", PMI_KVS_Get(own, "exchange-second", text, value_max), text, value_max);
    CODE("PMI_Barrier.nothing_put", PMI_Barrier());
    TEXT("PMI_KVS_Get.still_there", PMI_KVS_Get(own, "exchange-0", text, value_max), text, value_max);
}

/* Rank 0 puts keys and values of the maximal length; the last rank reads them. */
static void bounds(void)
{
    const char *key = text_of(key_max - 1, 'k');
    if (rank == 0) {
        CODE("PMI_KVS_Put.value_of_max_less_1", PMI_KVS_Put(own, "bounds-value", text_of(value_max - 1, 'v')));
        CODE("PMI_KVS_Put.key_of_max_less_1", PMI_KVS_Put(own, key, "found"));
        CODE("PMI_KVS_Commit", PMI_KVS_Commit(own));
    }
    CODE("PMI_Barrier", PMI_Barrier());
    walk_everyone = rank == 0 || rank == size - 1;
    TEXT("PMI_KVS_Get.value_of_max_less_1", PMI_KVS_Get(own, "bounds-value", text, value_max), text, value_max);
    int less = value_max - 1;
    TEXT("PMI_KVS_Get.value_of_max_into_less", PMI_KVS_Get(own, "bounds-value", text, less), text, less);
    TEXT("PMI_KVS_Get.key_of_max_less_1", PMI_KVS_Get(own, text_of(key_max - 1, 'k'), text, value_max), text, value_max);
}

/* Bytes with a meaning in one of the wire protocols. */
static const struct {
    const char *name, *key, *value;
} special[] = {
    {"blanks", "texts-blanks", "  two words  "},
    {"semicolons", "texts-semicolons", "a;b;;c;"},
    {"equals", "texts-equals", "key=value"},
    {"words_of_the_wire", "texts-wire", "x rc=-1 found=FALSE"},
    {"backslash_and_quote", "texts-quote", "\\n \"quoted\" 'x'"},
    {"bytes", "texts-bytes", "\x01\x7f\x80\xff"},
    {"empty_value", "texts-empty", ""},
    {"newline", "texts-newline", "one\ntwo\n"},
    {"tab", "texts-tab", "one\ttwo"},
    {"key_with_blank", "texts key", "value"},
    {"key_with_equals", "texts=key", "value"},
    {"key_with_semicolon", "texts;key", "value"},
    {"key_with_newline", "texts\nkey", "value"},
    {"key_empty", "", "of-the-empty-key"},
};
#define SPECIAL (sizeof special / sizeof *special)

static void texts(void)
{
    char name[64];
    if (rank == 0) {
        for (size_t i = 0; i < SPECIAL; i++) {
            snprintf(name, sizeof name, "PMI_KVS_Put.%s", special[i].name);
            CODE(name, PMI_KVS_Put(own, special[i].key, special[i].value));
        }
        CODE("PMI_KVS_Commit", PMI_KVS_Commit(own));
    }
    CODE("PMI_Barrier", PMI_Barrier());
    walk_everyone = rank == 0 || rank == size - 1;
    for (size_t i = 0; i < SPECIAL; i++) {
        snprintf(name, sizeof name, "PMI_KVS_Get.%s", special[i].name);
        TEXT(name, PMI_KVS_Get(own, special[i].key, text, value_max), text, value_max);
    }
}

/* A key that is put twice: the value is undefined, but the job must survive. */
static void twice(void)
{
    if (rank == 0) {
        CODE("PMI_KVS_Put", PMI_KVS_Put(own, "twice", "first"));
        CODE("PMI_KVS_Put.again", PMI_KVS_Put(own, "twice", "second"));
        CODE("PMI_KVS_Commit", PMI_KVS_Commit(own));
    }
    CODE("PMI_Barrier", PMI_Barrier());
    walk_everyone = rank == 0 || rank == size - 1;
    TEXT("PMI_KVS_Get", PMI_KVS_Get(own, "twice", text, value_max), text, value_max);
    walk_everyone = 0;
    if (rank == 0) {
        CODE("PMI_KVS_Put.after_barrier", PMI_KVS_Put(own, "twice", "third"));
        CODE("PMI_KVS_Commit.after_barrier", PMI_KVS_Commit(own));
    }
    CODE("PMI_Barrier.after_barrier", PMI_Barrier());
    walk_everyone = rank == 0 || rank == size - 1;
    TEXT("PMI_KVS_Get.after_barrier", PMI_KVS_Get(own, "twice", text, value_max), text, value_max);
}

static int seen, ours, wrong; /* pairs: all, of this section, of this section with a wrong value */

/* Iterates to the end, or to a bound in a library whose iteration never ends. */
static int iterate(void)
{
    int code = PMI_KVS_Iter_first(own, text, key_max, other, value_max);
    for (seen = ours = wrong = 0; code == PMI_SUCCESS && text[0] != '\0' && seen < 10000; seen++) {
        if (strncmp(text, "iteration-", 10) == 0) {
            ours++;
            wrong += strcmp(other, "value") != 0;
        }
        code = PMI_KVS_Iter_next(own, text, key_max, other, value_max);
    }
    return code;
}

/* All pairs, in any order. */
static void iteration(void)
{
    char key[64];
    snprintf(key, sizeof key, "iteration-%d", rank);
    PMI_KVS_Put(own, key, "value");
    PMI_KVS_Commit(own);
    CODE("PMI_Barrier", PMI_Barrier());
    CODE("PMI_KVS_Iter_first.null_kvs", PMI_KVS_Iter_first(NULL, text, key_max, other, value_max));
    CODE("PMI_KVS_Iter_first.null_key", PMI_KVS_Iter_first(own, NULL, key_max, other, value_max));
    CODE("PMI_KVS_Iter_first.null_value", PMI_KVS_Iter_first(own, text, key_max, NULL, value_max));
    CODE("PMI_KVS_Iter_first.unknown_kvs", PMI_KVS_Iter_first("unknown", text, key_max, other, value_max));
    CODE("PMI_KVS_Iter_first.kvs_of_max",
        PMI_KVS_Iter_first(text_of(name_max, 'n'), text, key_max, other, value_max));
    CODE("PMI_KVS_Iter_first.short_key", PMI_KVS_Iter_first(own, text, 1, other, value_max));
    CODE("PMI_KVS_Iter_first.short_value", PMI_KVS_Iter_first(own, text, key_max, other, 1));
    CODE("PMI_KVS_Iter_next.null_kvs", PMI_KVS_Iter_next(NULL, text, key_max, other, value_max));
    CODE("PMI_KVS_Iter_next.null_key", PMI_KVS_Iter_next(own, NULL, key_max, other, value_max));
    CODE("PMI_KVS_Iter_next.null_value", PMI_KVS_Iter_next(own, text, key_max, NULL, value_max));
    CODE("PMI_KVS_Iter_next.unknown_kvs", PMI_KVS_Iter_next("unknown", text, key_max, other, value_max));
    CODE("PMI_KVS_Iter_first", PMI_KVS_Iter_first(own, text, key_max, other, value_max));

    CHECK("PMI_KVS_Iter_next.to_the_end", iterate(),
        note(" iteration-* %d of %d, wrong %d%s", ours, size, wrong, seen >= 10000 ? ", without end" : ""));
    CODE("PMI_KVS_Iter_next.behind_the_end", PMI_KVS_Iter_next(own, text, key_max, other, value_max));
}

static void services(void)
{
    CODE("PMI_Publish_name.null_service", PMI_Publish_name(NULL, "port"));
    CODE("PMI_Publish_name.null_port", PMI_Publish_name("service", NULL));
    CODE("PMI_Lookup_name.null_service", PMI_Lookup_name(NULL, text));
    CODE("PMI_Lookup_name.null_port", PMI_Lookup_name("service", NULL));
    CODE("PMI_Unpublish_name.null", PMI_Unpublish_name(NULL));
    if (rank == 0) {
        TEXT("PMI_Lookup_name.absent", PMI_Lookup_name("walk-service", text), text, ROOM / 2);
        CODE("PMI_Unpublish_name.absent", PMI_Unpublish_name("walk-service"));
        CODE("PMI_Publish_name", PMI_Publish_name("walk-service", "walk-port"));
        CODE("PMI_Publish_name.twice", PMI_Publish_name("walk-service", "walk-port-2"));
    }
    CODE("PMI_Barrier", PMI_Barrier());
    walk_everyone = 1;
    TEXT("PMI_Lookup_name", PMI_Lookup_name("walk-service", text), text, ROOM / 2);
    walk_everyone = 0;
    CODE("PMI_Barrier.read", PMI_Barrier());
    if (rank == 0) {
        CODE("PMI_Unpublish_name", PMI_Unpublish_name("walk-service"));
        TEXT("PMI_Lookup_name.unpublished", PMI_Lookup_name("walk-service", text), text, ROOM / 2);
        CODE("PMI_Unpublish_name.twice", PMI_Unpublish_name("walk-service"));
    }
}

static void options(void)
{
    char *words[] = {"key=value", "next", NULL}, *none[] = {NULL}, *plain[] = {"program", "argument", NULL};
    char *dashed[] = {"program", "-key", "value", "-flag", NULL};
    int parsed, count, argc;
    char *(*argv)[];
    PMI_keyval_t *pairs = NULL;
    CODE("PMI_Parse_option.all_null", PMI_Parse_option(0, NULL, NULL, NULL, NULL));
    CODE("PMI_Parse_option.null_parsed", PMI_Parse_option(2, words, NULL, &pairs, &count));
    CODE("PMI_Parse_option.null_pairs", PMI_Parse_option(2, words, &parsed, NULL, &count));
    CODE("PMI_Parse_option.null_size", PMI_Parse_option(2, words, &parsed, &pairs, NULL));
    CODE("PMI_Parse_option.null_words", PMI_Parse_option(2, NULL, &parsed, &pairs, &count));
    CODE("PMI_Parse_option.no_words", PMI_Parse_option(0, words, &parsed, &pairs, &count));
    CODE("PMI_Parse_option.null_word", PMI_Parse_option(1, none, &parsed, &pairs, &count));
/* A check of a call that returns pairs, and of a first output number. */
#define PAIRS(name, call, number_name, number)                                            \
    count = UNTOUCHED;                                                                    \
    pairs = NULL;                                                                         \
    CHECK(name, call, {                                                                   \
        note_number(number_name, number);                                                 \
        note_number("size", count);                                                       \
        for (int i = 0; pairs && i < count; i++)                                          \
            note(" %s:%s", pairs[i].key ? pairs[i].key : "-", pairs[i].val ? pairs[i].val : "-"); \
    });                                                                                   \
    if (pairs && count > 0)                                                               \
        CODE(name ".PMI_Free_keyvals", PMI_Free_keyvals(pairs, count))
#define PARSED(name, number, list)                                                        \
    parsed = UNTOUCHED;                                                                   \
    PAIRS(name, PMI_Parse_option(number, list, &parsed, &pairs, &count), "parsed", parsed)
    PARSED("PMI_Parse_option.pair", 2, words);
    PARSED("PMI_Parse_option.plain", 2, plain);
    PARSED("PMI_Parse_option.dashed", 4, dashed);

    argv = (char *(*)[]) dashed;
    argc = 4;
    CODE("PMI_Args_to_keyval.null_argc", PMI_Args_to_keyval(NULL, argv, &pairs, &count));
    CODE("PMI_Args_to_keyval.null_argv", PMI_Args_to_keyval(&argc, NULL, &pairs, &count));
    CODE("PMI_Args_to_keyval.null_pairs", PMI_Args_to_keyval(&argc, argv, NULL, &count));
    CODE("PMI_Args_to_keyval.null_size", PMI_Args_to_keyval(&argc, argv, &pairs, NULL));
#define TAKEN(name, number, list)                                                         \
    argv = (char *(*)[])(list);                                                           \
    argc = (number);                                                                      \
    PAIRS(name, PMI_Args_to_keyval(&argc, argv, &pairs, &count), "left", argc)
    TAKEN("PMI_Args_to_keyval.dashed", 4, dashed);
    TAKEN("PMI_Args_to_keyval.plain", 2, plain);
    TAKEN("PMI_Args_to_keyval.program_only", 1, plain);
    TAKEN("PMI_Args_to_keyval.none", 0, none);
    CODE("PMI_Free_keyvals.none", PMI_Free_keyvals(NULL, 0));
    CODE("PMI_Free_keyvals.null", PMI_Free_keyvals(NULL, 1));

    length = ROOM / 2;
    memset(text, UNTOUCHED_BYTE, ROOM);
    CHECK("PMI_Get_options", PMI_Get_options(text, &length), note(text[0] == UNTOUCHED_BYTE ? " untouched" : " <text>"));
    CODE("PMI_Get_options.null_text", PMI_Get_options(NULL, &length));
    CODE("PMI_Get_options.null_length", PMI_Get_options(text, NULL));
    length = 4;
    TEXT("PMI_Get_options.short", PMI_Get_options(text, &length), text, 4);
    length = 0;
    CODE("PMI_Get_options.length_0", PMI_Get_options(text, &length));
}

static void spawn(void)
{
    const char *commands[] = {"/nonexistent/program"}, **words[] = {NULL};
    const PMI_keyval_t *hints[] = {NULL};
    int one[] = {1}, zero[] = {0}, errors[1] = {UNTOUCHED};
    CODE("PMI_Spawn_multiple.null_commands",
        PMI_Spawn_multiple(1, NULL, words, one, zero, hints, 0, NULL, errors));
    CODE("PMI_Spawn_multiple.no_commands",
        PMI_Spawn_multiple(0, commands, words, one, zero, hints, 0, NULL, errors));
    CODE("PMI_Spawn_multiple.count_negative",
        PMI_Spawn_multiple(-1, commands, words, one, zero, hints, 0, NULL, errors));
    CODE("PMI_Spawn_multiple.null_maxprocs",
        PMI_Spawn_multiple(1, commands, words, NULL, zero, hints, 0, NULL, errors));
    CODE("PMI_Spawn_multiple.null_preput",
        PMI_Spawn_multiple(1, commands, words, one, zero, hints, 1, NULL, errors));
    CODE("PMI_Spawn_multiple.no_ranks",
        PMI_Spawn_multiple(1, commands, words, zero, zero, hints, 0, NULL, errors));
}

/* Calls after which Slurm's library keeps a lock for ever, so this section runs only without that library. */
static void cliffs(void)
{
    PMI_KVS_Put(own, "cliffs", "value");
    TEXT("PMI_KVS_Get.length_negative", PMI_KVS_Get(own, "cliffs", text, -1), text, -1);
    TEXT("PMI_KVS_Get.length_least", PMI_KVS_Get(own, "cliffs", text, INT_MIN), text, -1);
    CODE("PMI_KVS_Iter_first.lengths_negative", PMI_KVS_Iter_first(own, text, -1, other, -1));
    CODE("PMI_KVS_Iter_next.lengths_negative", PMI_KVS_Iter_next(own, text, -1, other, -1));
}

/* The last section of a run; the test checks the exit code. */
static void abort_job(void)
{
    CODE("PMI_Barrier", PMI_Barrier());
    if (rank == 0) {
        walk_guarded = 0;
        PMI_Abort(42, "the walk ends here");
        line("PMI_Abort", "came back");
        _exit(9);
    }
    wait_for_the_kill();
}

static void finalize(void)
{
    CODE("PMI_Barrier", PMI_Barrier());
    CODE("PMI_Finalize", PMI_Finalize());
    NUMBER("PMI_Initialized", PMI_Initialized(&initialized), initialized);
    APART("PMI_Finalize.twice", PMI_Finalize());
    APART("PMI_Get_size", PMI_Get_size(&n));
    APART("PMI_Get_rank", PMI_Get_rank(&n));
    APART("PMI_Get_appnum", PMI_Get_appnum(&n));
    APART("PMI_Get_universe_size", PMI_Get_universe_size(&n));
    APART("PMI_Get_id", PMI_Get_id(text, ROOM));
    APART("PMI_Get_clique_size", PMI_Get_clique_size(&n));
    APART("PMI_Get_clique_ranks", PMI_Get_clique_ranks(ranks, 4096));
    APART("PMI_Barrier.late", PMI_Barrier());
    APART("PMI_KVS_Get_my_name", PMI_KVS_Get_my_name(text, ROOM));
    APART("PMI_KVS_Put", PMI_KVS_Put(own, "finalized", "value"));
    APART("PMI_KVS_Commit", PMI_KVS_Commit(own));
    APART("PMI_KVS_Get", PMI_KVS_Get(own, "exchange-0", text, ROOM));
    APART("PMI_KVS_Iter_first", PMI_KVS_Iter_first(own, text, ROOM, other, ROOM));
    APART("PMI_Publish_name", PMI_Publish_name("service", "port"));
    APART("PMI_Lookup_name", PMI_Lookup_name("service", text));
}

int main(int argc, char **argv)
{
    static const struct section sections[] = {
        {"before", before, USUALLY},
        {"init", init, ALWAYS},
        {"world", world, USUALLY},
        {"spaces", spaces, USUALLY},
        {"arguments", arguments, USUALLY},
        {"exchange", exchange, USUALLY},
        {"bounds", bounds, USUALLY},
        {"iteration", iteration, USUALLY},
        {"services", services, USUALLY},
        {"options", options, USUALLY},
        {"spawn", spawn, USUALLY},
        {"texts", texts, USUALLY},
        {"twice", twice, USUALLY},
        {"cliffs", cliffs, ON_DEMAND},
        {"abort", abort_job, ON_DEMAND},
        {"finalize", finalize, ALWAYS},
    };
    return walk(sections, sizeof sections / sizeof *sections, argc, argv);
}
