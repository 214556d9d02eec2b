/*
 * Calls each function of PMI-2 before PMI2_Init, with arguments of all kinds, in a normal sequence,
 * and after PMI2_Finalize. See walk.h. Runs as all ranks of a job of at least two, on one node.
 */
#define WALK_CODE_14 "OTHER"
#include "walk.h"

#include <pmi2.h>

static int size, rank, spawned, appnum, found, vallen, n, place, places, outlen;
static char own[ROOM];               /* the name of the job */
static char text[ROOM], other[ROOM]; /* for outputs */
static int numbers[64];

/* Initialises PMI in a forked child as a process without a launcher. */
static int alone(int *s, int *z, int *r, int *a)
{
    unsetenv("PMI_FD");
    unsetenv("PMI_PORT");
    return PMI2_Init(s, z, r, a);
}

#define INITIALIZED() CHECK("PMI2_Initialized", (n = PMI2_Initialized(), 0), note(n ? " yes" : " no"))

static void before(void)
{
    INITIALIZED();
    APART("PMI2_Job_GetId", PMI2_Job_GetId(text, ROOM));
    APART("PMI2_Job_GetRank", PMI2_Job_GetRank(&n));
    APART("PMI2_Info_GetSize", PMI2_Info_GetSize(&n));
    APART("PMI2_Job_Connect", PMI2_Job_Connect("job", NULL));
    APART("PMI2_Job_Disconnect", PMI2_Job_Disconnect("job"));
    APART("PMI2_KVS_Put", PMI2_KVS_Put("key", "value"));
    APART("PMI2_KVS_Fence", PMI2_KVS_Fence());
    APART("PMI2_KVS_Get", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "key", text, ROOM, &vallen));
    APART("PMIX_Ring", PMIX_Ring("value", &place, &places, text, other, 64));
    APART("PMI2_Info_PutNodeAttr", PMI2_Info_PutNodeAttr("name", "value"));
    APART("PMI2_Info_GetNodeAttr", PMI2_Info_GetNodeAttr("name", text, ROOM, &found, 0));
    APART("PMI2_Info_GetNodeAttrIntArray", PMI2_Info_GetNodeAttrIntArray("name", numbers, 64, &outlen, &found));
    APART("PMI2_Info_GetJobAttr", PMI2_Info_GetJobAttr("universeSize", text, ROOM, &found));
    APART("PMI2_Info_GetJobAttrIntArray", PMI2_Info_GetJobAttrIntArray("universeSize", numbers, 64, &outlen, &found));
    APART("PMI2_Nameserv_publish", PMI2_Nameserv_publish("service", NULL, "port"));
    APART("PMI2_Nameserv_lookup", PMI2_Nameserv_lookup("service", NULL, text, ROOM));
    APART("PMI2_Nameserv_unpublish", PMI2_Nameserv_unpublish("service", NULL));
    APART("PMI2_Finalize", PMI2_Finalize());

    APART("PMI2_Init.null_spawned", alone(NULL, &size, &rank, &appnum));
    APART("PMI2_Init.null_size", alone(&spawned, NULL, &rank, &appnum));
    APART("PMI2_Init.null_rank", alone(&spawned, &size, NULL, &appnum));
    APART("PMI2_Init.null_appnum", alone(&spawned, &size, &rank, NULL));
}

static void init(void)
{
    size = rank = appnum = spawned = UNTOUCHED;
    CHECK("PMI2_Init", PMI2_Init(&spawned, &size, &rank, &appnum),
        note(" spawned %d size %d rank %s appnum %d", spawned, size, rank == walk_rank ? "right" : "wrong", appnum));
    INITIALIZED();
    if (size < 1)
        exit(1);
    if (PMI2_Job_GetId(own, ROOM) != PMI2_SUCCESS)
        line("own_name", "unknown");
    walk_known_text = own;
    walk_known_kind = "<own name>";
    /* Under a launcher that does not speak PMI-2, the environment's rank does not apply. */
    if (rank != walk_rank)
        line("rank", "not that of the environment");
}

static void world(void)
{
    NUMBER("PMI2_Info_GetSize", PMI2_Info_GetSize(&n), n);
    CODE("PMI2_Info_GetSize.null", PMI2_Info_GetSize(NULL));
    CODE("PMI2_Job_GetRank.null", PMI2_Job_GetRank(NULL));
    int exact = (int)strlen(own) + 1;
    TEXT("PMI2_Job_GetId", PMI2_Job_GetId(text, ROOM / 2), text, ROOM / 2);
    TEXT("PMI2_Job_GetId.exact", PMI2_Job_GetId(text, exact), text, exact);
    memset(text, UNTOUCHED_BYTE, ROOM);
    CHECK("PMI2_Job_GetId.short", PMI2_Job_GetId(text, exact - 1),
        note(text[exact - 2] == '\0' && strncmp(text, own, (size_t)(exact - 2)) == 0 ? " <cut>" : " <not cut>"));
    TEXT("PMI2_Job_GetId.length_1", PMI2_Job_GetId(text, 1), text, 1);
    TEXT("PMI2_Job_GetId.length_0", PMI2_Job_GetId(text, 0), text, 0);
    CODE("PMI2_Job_GetId.null", PMI2_Job_GetId(NULL, 64));
    walk_everyone = 1;
    NUMBER("PMI2_Job_GetRank", PMI2_Job_GetRank(&n), n);
}

static void arguments(void)
{
    /* Hydra crashes on a get before the first fence. */
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    CODE("PMI2_KVS_Put.null_key", PMI2_KVS_Put(NULL, "value"));
    CODE("PMI2_KVS_Put.null_value", PMI2_KVS_Put("arguments-null", NULL));
    CODE("PMI2_KVS_Put.key_of_max", PMI2_KVS_Put(text_of(PMI2_MAX_KEYLEN, 'k'), "value"));
    CODE("PMI2_KVS_Put.key_of_max_and_1", PMI2_KVS_Put(text_of(PMI2_MAX_KEYLEN + 1, 'k'), "value"));
    CODE("PMI2_KVS_Put.value_of_max", PMI2_KVS_Put("arguments-value", text_of(PMI2_MAX_VALLEN, 'v')));
    CODE("PMI2_KVS_Put.value_of_max_and_1", PMI2_KVS_Put("arguments-value", text_of(PMI2_MAX_VALLEN + 1, 'v')));
    TEXT("PMI2_KVS_Get.absent", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "absent", text, 64, &vallen), text, 64);
    CODE("PMI2_KVS_Get.null_key", PMI2_KVS_Get(NULL, PMI2_ID_NULL, NULL, text, 64, &vallen));
    CODE("PMI2_KVS_Get.key_of_max", PMI2_KVS_Get(NULL, PMI2_ID_NULL, text_of(PMI2_MAX_KEYLEN, 'k'), text, 64, &vallen));
    CODE("PMI2_KVS_Get.length_0", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "absent", text, 0, &vallen));
}

/* A check of the code, the value and its length. */
#define GET(check, job, source, key, room)                                            \
    do {                                                                              \
        vallen = UNTOUCHED;                                                           \
        memset(text, UNTOUCHED_BYTE, ROOM);                                           \
        CHECK(check, PMI2_KVS_Get(job, source, key, text, room, &vallen), {           \
            note_text(text, room);                                                    \
            note_number("vallen", vallen);                                            \
        });                                                                           \
    } while (0)

/* Each rank's puts are visible to all ranks. */
static void exchange(void)
{
    char key[64], value[64];
    snprintf(key, sizeof key, "exchange-%d", rank);
    snprintf(value, sizeof value, "value of %d", rank);
    CODE("PMI2_KVS_Put", PMI2_KVS_Put(key, value));
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    walk_everyone = 1;
    for (int who = 0; who < size; who++) {
        snprintf(key, sizeof key, "exchange-%d", who);
        GET(numbered("PMI2_KVS_Get.of_%d", who), NULL, PMI2_ID_NULL, key, PMI2_MAX_VALLEN);
        GET(numbered("PMI2_KVS_Get.hint_of_%d", who), NULL, who, key, PMI2_MAX_VALLEN);
    }
    GET("PMI2_KVS_Get.own_name", own, PMI2_ID_NULL, "exchange-0", PMI2_MAX_VALLEN);
    GET("PMI2_KVS_Get.wrong_hint", NULL, size - 1, "exchange-0", PMI2_MAX_VALLEN);
    GET("PMI2_KVS_Get.absent", NULL, PMI2_ID_NULL, "exchange-absent", PMI2_MAX_VALLEN);
    walk_everyone = 0;
    if (rank == size - 1)
        PMI2_KVS_Put("exchange-second", "of the last");
    CODE("PMI2_KVS_Fence.second", PMI2_KVS_Fence());
    GET("PMI2_KVS_Get.second", NULL, size - 1, "exchange-second", PMI2_MAX_VALLEN);
    CODE("PMI2_KVS_Fence.nothing_put", PMI2_KVS_Fence());
    GET("PMI2_KVS_Get.still_there", NULL, 0, "exchange-0", PMI2_MAX_VALLEN);
}

/* "hello" into buffers that are too short for it. */
static void cuts(void)
{
    if (rank == size - 1)
        CODE("PMI2_KVS_Put", PMI2_KVS_Put("cuts", "hello"));
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    for (int room = 7; room > 0; room--)
        GET(numbered("PMI2_KVS_Get.room_%d", room), NULL, PMI2_ID_NULL, "cuts", room);
    APART("PMI2_KVS_Get.room_0", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "absent", text, 0, &vallen));
}

/* Rank 0 puts keys and values of the maximal length; the last rank reads them. */
static void bounds(void)
{
    if (rank == 0) {
        CODE("PMI2_KVS_Put.value_of_max_less_1", PMI2_KVS_Put("bounds-value", text_of(PMI2_MAX_VALLEN - 1, 'v')));
        CODE("PMI2_KVS_Put.key_of_max_less_1", PMI2_KVS_Put(text_of(PMI2_MAX_KEYLEN - 1, 'k'), "found"));
    }
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    walk_everyone = rank == 0 || rank == size - 1;
    GET("PMI2_KVS_Get.value_of_max_less_1", NULL, 0, "bounds-value", PMI2_MAX_VALLEN);
    GET("PMI2_KVS_Get.value_into_more", NULL, 0, "bounds-value", 2 * PMI2_MAX_VALLEN);
    GET("PMI2_KVS_Get.key_of_max_less_1", NULL, 0, text_of(PMI2_MAX_KEYLEN - 1, 'k'), 64);
}

/* A check of the code, the value of an attribute, and whether it exists. */
#define FOUND(check, call, room)                                                   \
    do {                                                                           \
        found = UNTOUCHED;                                                         \
        memset(text, UNTOUCHED_BYTE, ROOM);                                        \
        CHECK(check, call, {                                                       \
            note_text(text, room);                                                 \
            note_number("found", found);                                           \
        });                                                                        \
    } while (0)
#define ATTRIBUTE(check, key, room) FOUND(check, PMI2_Info_GetNodeAttr(key, text, room, &found, 0), room)

/* Rank 0 puts attributes and reads them back. */
static void own_attributes(void)
{
    ATTRIBUTE("PMI2_Info_GetNodeAttr.absent", "attributes-absent", 64);
    CODE("PMI2_Info_PutNodeAttr", PMI2_Info_PutNodeAttr("attributes-own", "at once"));
    ATTRIBUTE("PMI2_Info_GetNodeAttr.own", "attributes-own", 64);
    ATTRIBUTE("PMI2_Info_GetNodeAttr.exact", "attributes-own", 8);
    ATTRIBUTE("PMI2_Info_GetNodeAttr.short", "attributes-own", 7);
    ATTRIBUTE("PMI2_Info_GetNodeAttr.length_1", "attributes-own", 1);
    CODE("PMI2_Info_PutNodeAttr.again", PMI2_Info_PutNodeAttr("attributes-own", "another"));
    ATTRIBUTE("PMI2_Info_GetNodeAttr.again", "attributes-own", 64);
    CODE("PMI2_Info_PutNodeAttr.name_of_max", PMI2_Info_PutNodeAttr(text_of(PMI2_MAX_KEYLEN, 'n'), "value"));
    CODE("PMI2_Info_PutNodeAttr.value_of_max",
        PMI2_Info_PutNodeAttr("attributes-max", text_of(PMI2_MAX_ATTRVALUE, 'v')));
    CODE("PMI2_Info_PutNodeAttr.value_of_max_less_1",
        PMI2_Info_PutNodeAttr("attributes-less", text_of(PMI2_MAX_ATTRVALUE - 1, 'v')));
    ATTRIBUTE("PMI2_Info_GetNodeAttr.value_of_max_less_1", "attributes-less", PMI2_MAX_ATTRVALUE);
    CODE("PMI2_Info_PutNodeAttr.empty_value", PMI2_Info_PutNodeAttr("attributes-empty", ""));
    ATTRIBUTE("PMI2_Info_GetNodeAttr.empty_value", "attributes-empty", 64);
    CODE("PMI2_Info_PutNodeAttr.numbers", PMI2_Info_PutNodeAttr("attributes-numbers", "3,-1,40"));
    CODE("PMI2_Info_PutNodeAttr.number", PMI2_Info_PutNodeAttr("attributes-number", "7"));
    CODE("PMI2_Info_PutNodeAttr.no_numbers", PMI2_Info_PutNodeAttr("attributes-words", "none,of,these"));
}

/* A check of the code and a list of numbers. */
#define NUMBERS(check, call)                                                       \
    do {                                                                           \
        found = outlen = UNTOUCHED;                                                \
        for (int i = 0; i < 64; i++)                                               \
            numbers[i] = UNTOUCHED;                                                \
        CHECK(check, call, {                                                       \
            note_number("found", found);                                           \
            note_number("outlen", outlen);                                         \
            for (int i = 0; i < 64 && numbers[i] != UNTOUCHED; i++)                \
                note(" %d", numbers[i]);                                           \
        });                                                                        \
    } while (0)
#define ON_NODE(key, room) PMI2_Info_GetNodeAttrIntArray(key, numbers, room, &outlen, &found)

static void number_attributes(void)
{
    NUMBERS("PMI2_Info_GetNodeAttrIntArray", ON_NODE("attributes-numbers", 64));
    NUMBERS("PMI2_Info_GetNodeAttrIntArray.exact", ON_NODE("attributes-numbers", 3));
    NUMBERS("PMI2_Info_GetNodeAttrIntArray.short", ON_NODE("attributes-numbers", 2));
    NUMBERS("PMI2_Info_GetNodeAttrIntArray.one", ON_NODE("attributes-number", 64));
    NUMBERS("PMI2_Info_GetNodeAttrIntArray.words", ON_NODE("attributes-words", 64));
    NUMBERS("PMI2_Info_GetNodeAttrIntArray.empty", ON_NODE("attributes-empty", 64));
    NUMBERS("PMI2_Info_GetNodeAttrIntArray.absent", ON_NODE("attributes-absent", 64));
    NUMBERS("PMI2_Info_GetNodeAttrIntArray.localRanksCount", ON_NODE("localRanksCount", 64));
    NUMBERS("PMI2_Info_GetNodeAttrIntArray.localRanks", ON_NODE("localRanks", 64));
}

static void attributes(void)
{
    char name[64], value[64];
    if (rank == 0)
        own_attributes();
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    if (rank == 0)
        number_attributes();
    /* Each rank waits for the attribute of the next, which that rank puts before it waits itself. */
    snprintf(name, sizeof name, "attributes-of-%d", rank);
    snprintf(value, sizeof value, "node value of %d", rank);
    PMI2_Info_PutNodeAttr(name, value);
    snprintf(name, sizeof name, "attributes-of-%d", (rank + 1) % size);
    walk_everyone = 1;
    FOUND("PMI2_Info_GetNodeAttr.wait", PMI2_Info_GetNodeAttr(name, text, 64, &found, 1), 64);
    walk_everyone = 0;

    /* The last rank most likely waits before rank 0 puts: it puts an attribute just before it waits. */
    if (rank == size - 1) {
        PMI2_Info_PutNodeAttr("attributes-waiting", "yes");
        walk_everyone = 1;
        FOUND("PMI2_Info_GetNodeAttr.wait_first", PMI2_Info_GetNodeAttr("attributes-late", text, 64, &found, 1), 64);
        walk_everyone = 0;
    } else if (rank == 0) {
        CODE("PMI2_Info_GetNodeAttr.wait_for_waiter", PMI2_Info_GetNodeAttr("attributes-waiting", text, 64, &found, 1));
        CODE("PMI2_Info_PutNodeAttr.late", PMI2_Info_PutNodeAttr("attributes-late", "at last"));
    }
    CODE("PMI2_KVS_Fence.end", PMI2_KVS_Fence());
}

/* Attributes of the job. Of the absent ones, "Absent" sorts before and "walk-absent" after all names that
 * Slurm knows. */
static void job(void)
{
#define OF_JOB(check, key, room) FOUND(check, PMI2_Info_GetJobAttr(key, text, room, &found), room)
    found = UNTOUCHED;
    CHECK("PMI2_Info_GetJobAttr.PMI_process_mapping", PMI2_Info_GetJobAttr("PMI_process_mapping", text, 1024, &found), {
        note(strncmp(text, "(vector,(0,1,", 13) == 0 ? " <one node>" : " <text>");
        note_number("found", found);
    });
    OF_JOB("PMI2_Info_GetJobAttr.short", "PMI_process_mapping", 4);
    OF_JOB("PMI2_Info_GetJobAttr.length_1", "PMI_process_mapping", 1);
    OF_JOB("PMI2_Info_GetJobAttr.absent", "Absent", 64);
    found = UNTOUCHED;
    memset(text, UNTOUCHED_BYTE, ROOM);
    CHECK("PMI2_Info_GetJobAttr.absent_small", PMI2_Info_GetJobAttr("walk-absent", text, 1024, &found), {
        note(text[0] == UNTOUCHED_BYTE ? " untouched" : " <text>");
        note_number("found", found);
    });
    CHECK("PMI2_Info_GetJobAttr.universeSize", PMI2_Info_GetJobAttr("universeSize", text, 1024, &found),
        note("%s", atoi(text) >= size ? " enough" : " too small"));
    found = outlen = UNTOUCHED;
    CHECK("PMI2_Info_GetJobAttrIntArray.universeSize",
        PMI2_Info_GetJobAttrIntArray("universeSize", numbers, 64, &outlen, &found), {
            note("%s", numbers[0] >= size ? " enough" : " too small");
            note_number("found", found);
            note_number("outlen", outlen);
        });
    NUMBERS("PMI2_Info_GetJobAttrIntArray.absent",
        PMI2_Info_GetJobAttrIntArray("Absent", numbers, 64, &outlen, &found));
    CODE("PMI2_Info_GetJobAttr.key_of_max", PMI2_Info_GetJobAttr(text_of(PMI2_MAX_KEYLEN, 'K'), text, 64, &found));
}

/* Hydra's fence does not wait for all ranks, but a get of an absent key after it does. */
static void wait_for_fence(void)
{
    PMI2_KVS_Get(NULL, PMI2_ID_NULL, "absent-after-fence", text, 64, &vallen);
}

static void services(void)
{
    if (rank == 0) {
        TEXT("PMI2_Nameserv_lookup.absent", PMI2_Nameserv_lookup("walk-service", NULL, text, 64), text, 64);
        CODE("PMI2_Nameserv_unpublish.absent", PMI2_Nameserv_unpublish("walk-service", NULL));
        CODE("PMI2_Nameserv_publish", PMI2_Nameserv_publish("walk-service", NULL, "walk port; of=1"));
        CODE("PMI2_Nameserv_publish.twice", PMI2_Nameserv_publish("walk-service", NULL, "another"));
        CODE("PMI2_Nameserv_publish.plain", PMI2_Nameserv_publish("walk-plain", NULL, "walk-port"));
    }
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    wait_for_fence();
    walk_everyone = 1;
    TEXT("PMI2_Nameserv_lookup", PMI2_Nameserv_lookup("walk-plain", NULL, text, 64), text, 64);
    walk_everyone = 0;
    TEXT("PMI2_Nameserv_lookup.after_two", PMI2_Nameserv_lookup("walk-service", NULL, text, 64), text, 64);
    TEXT("PMI2_Nameserv_lookup.short", PMI2_Nameserv_lookup("walk-plain", NULL, text, 5), text, 5);
    CODE("PMI2_KVS_Fence.read", PMI2_KVS_Fence());
    wait_for_fence();
    if (rank == 0) {
        CODE("PMI2_Nameserv_unpublish", PMI2_Nameserv_unpublish("walk-plain", NULL));
        CODE("PMI2_Nameserv_unpublish.other", PMI2_Nameserv_unpublish("walk-service", NULL));
        TEXT("PMI2_Nameserv_lookup.unpublished", PMI2_Nameserv_lookup("walk-plain", NULL, text, 64), text, 64);
        CODE("PMI2_Nameserv_unpublish.twice", PMI2_Nameserv_unpublish("walk-plain", NULL));
    }
}

/* The launcher chooses the order of the ring, but the neighbours' strings must match it. */
static void ring(void)
{
    char value[64];
    snprintf(value, sizeof value, "ring %d", rank);
    place = places = UNTOUCHED;
    memset(text, UNTOUCHED_BYTE, ROOM);
    memset(other, UNTOUCHED_BYTE, ROOM);
    walk_everyone = 1;
    CHECK("PMIX_Ring", PMIX_Ring(value, &place, &places, text, other, 64), {
        note_number("place", place);
        note_number("of", places);
        note(" left");
        note_text(text, 64);
        note(" right");
        note_text(other, 64);
    });
    /* A second time, with a value that fills its buffer. */
    CHECK("PMIX_Ring.again", PMIX_Ring(text_of(63, (char)('a' + rank)), &place, &places, text, other, 64), {
        note(" left");
        note_text(text, 64);
        note(" right");
        note_text(other, 64);
    });
}

static void spawn(void)
{
    const char *commands[] = {"/nonexistent/program"}, *none[] = {NULL}, **words[] = {NULL};
    const struct MPID_Info *hints[] = {NULL}, *preputs[] = {NULL};
    int one[] = {1}, zero[] = {0}, counts[] = {0}, errors[1] = {UNTOUCHED};
#define SPAWN(count, cmds, procs, infos, preput, pairs, id) \
    PMI2_Job_Spawn(count, cmds, counts, words, procs, zero, infos, preput, pairs, id, 64, errors)
    if (rank == 0) {
        CODE("PMI2_Job_Spawn.no_commands", SPAWN(0, commands, one, hints, 0, preputs, text));
        CODE("PMI2_Job_Spawn.count_negative", SPAWN(-1, commands, one, hints, 0, preputs, text));
        CODE("PMI2_Job_Spawn.null_commands", SPAWN(1, NULL, one, hints, 0, preputs, text));
        CODE("PMI2_Job_Spawn.null_command", SPAWN(1, none, one, hints, 0, preputs, text));
        CODE("PMI2_Job_Spawn.null_maxprocs", SPAWN(1, commands, NULL, hints, 0, preputs, text));
        CODE("PMI2_Job_Spawn.null_preput", SPAWN(1, commands, one, hints, 1, NULL, text));
    }
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
}

/* Slurm's launcher does not answer these requests. */
static void connections(void)
{
    PMI2_Connect_comm_t channel;
    memset(&channel, 0, sizeof channel);
    if (rank == 0) {
        CODE("PMI2_Job_Connect.unknown", PMI2_Job_Connect("unknown", &channel));
        CODE("PMI2_Job_Connect.null_channel", PMI2_Job_Connect("unknown", NULL));
        CODE("PMI2_Job_Connect.null", PMI2_Job_Connect(NULL, &channel));
        CODE("PMI2_Job_Disconnect.unknown", PMI2_Job_Disconnect("unknown"));
        CODE("PMI2_Job_Disconnect.null", PMI2_Job_Disconnect(NULL));
        GET("PMI2_KVS_Get.unknown_job", "unknown", PMI2_ID_NULL, "key", 64);
    }
}

/* Bytes with a meaning in one of the wire protocols. */
static const struct {
    const char *name, *key, *value;
} special[] = {
    {"blanks", "texts-blanks", "  two words  "},
    {"equals", "texts-equals", "key=value"},
    {"words_of_the_wire", "texts-wire", "x rc=-1 found=FALSE"},
    {"backslash_and_quote", "texts-quote", "\\n \"quoted\" 'x'"},
    {"bytes", "texts-bytes", "\x01\x7f\x80\xff"},
    {"newline", "texts-newline", "one\ntwo\n"},
    {"tab", "texts-tab", "one\ttwo"},
    {"empty_value", "texts-empty", ""},
    {"key_with_blank", "texts key", "value"},
    {"key_with_newline", "texts\nkey", "value"},
    {"semicolons", "texts-semicolons", "a;b;;c"},
    {"semicolon_at_the_end", "texts-semicolon", "a;"},
    {"key_with_equals", "texts=key", "value"},
    {"key_with_semicolon", "texts;key", "value"},
    {"key_empty", "", "value"},
};
#define SPECIAL (sizeof special / sizeof *special)

static void texts(void)
{
    char name[64];
    if (rank == 0) {
        for (size_t i = 0; i < SPECIAL; i++) {
            snprintf(name, sizeof name, "PMI2_KVS_Put.%s", special[i].name);
            CODE(name, PMI2_KVS_Put(special[i].key, special[i].value));
        }
    }
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    walk_everyone = rank == 0 || rank == size - 1;
    for (size_t i = 0; i < SPECIAL; i++) {
        snprintf(name, sizeof name, "PMI2_KVS_Get.%s", special[i].name);
        GET(name, NULL, 0, special[i].key, PMI2_MAX_VALLEN);
    }
}

/* A key that is put twice: the value is undefined, but the job must survive. */
static void twice(void)
{
    if (rank == 0) {
        CODE("PMI2_KVS_Put", PMI2_KVS_Put("twice", "first"));
        CODE("PMI2_KVS_Put.again", PMI2_KVS_Put("twice", "second"));
    }
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    walk_everyone = rank == 0 || rank == size - 1;
    GET("PMI2_KVS_Get", NULL, 0, "twice", 64);
    walk_everyone = 0;
    if (rank == 0)
        CODE("PMI2_KVS_Put.after_fence", PMI2_KVS_Put("twice", "third"));
    CODE("PMI2_KVS_Fence.after_fence", PMI2_KVS_Fence());
    walk_everyone = rank == 0 || rank == size - 1;
    GET("PMI2_KVS_Get.after_fence", NULL, 0, "twice", 64);
}

/* Null output arguments: Slurm's library crashes on them or misbehaves. */
static void cliffs(void)
{
    PMI2_KVS_Put("cliffs", "value");
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    CODE("PMI2_KVS_Get.null_value", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "cliffs", NULL, 64, &vallen));
    CODE("PMI2_KVS_Get.null_length", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "cliffs", text, 64, NULL));
    TEXT("PMI2_KVS_Get.room_0", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "cliffs", text, 0, &vallen), text, 0);
    TEXT("PMI2_KVS_Get.room_negative", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "cliffs", text, -1, &vallen), text, -1);
    CODE("PMI2_Info_PutNodeAttr.null_name", PMI2_Info_PutNodeAttr(NULL, "value"));
    CODE("PMI2_Info_PutNodeAttr.null_value", PMI2_Info_PutNodeAttr("cliffs", NULL));
    CODE("PMI2_Info_GetNodeAttr.null_name", PMI2_Info_GetNodeAttr(NULL, text, 64, &found, 0));
    CODE("PMI2_Info_GetNodeAttr.null_value", PMI2_Info_GetNodeAttr("cliffs", NULL, 64, &found, 0));
    CODE("PMI2_Info_GetNodeAttr.null_found", PMI2_Info_GetNodeAttr("cliffs", text, 64, NULL, 0));
    CODE("PMI2_Info_GetNodeAttr.length_0", PMI2_Info_GetNodeAttr("cliffs", text, 0, &found, 0));
    CODE("PMI2_Info_GetNodeAttrIntArray.null", PMI2_Info_GetNodeAttrIntArray("cliffs", NULL, 64, NULL, NULL));
    CODE("PMI2_Info_GetJobAttr.null_name", PMI2_Info_GetJobAttr(NULL, text, 64, &found));
    CODE("PMI2_Info_GetJobAttr.null_value", PMI2_Info_GetJobAttr("universeSize", NULL, 64, &found));
    CODE("PMI2_Info_GetJobAttr.null_found", PMI2_Info_GetJobAttr("universeSize", text, 64, NULL));
    CODE("PMI2_Info_GetJobAttrIntArray.null", PMI2_Info_GetJobAttrIntArray("universeSize", NULL, 64, NULL, NULL));
    CODE("PMI2_Nameserv_publish.null_service", PMI2_Nameserv_publish(NULL, NULL, "port"));
    CODE("PMI2_Nameserv_publish.null_port", PMI2_Nameserv_publish("cliffs", NULL, NULL));
    CODE("PMI2_Nameserv_lookup.null_service", PMI2_Nameserv_lookup(NULL, NULL, text, 64));
    CODE("PMI2_Nameserv_lookup.null_port", PMI2_Nameserv_lookup("cliffs", NULL, NULL, 64));
    CODE("PMI2_Nameserv_unpublish.null", PMI2_Nameserv_unpublish(NULL, NULL));
    CODE("PMIX_Ring.null", PMIX_Ring(NULL, NULL, NULL, NULL, NULL, 64));
    CODE("PMI2_Job_Spawn.all_null", PMI2_Job_Spawn(1, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, NULL));
}

/* The last section of a run. */
static void abort_job(void)
{
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    if (rank == 0) {
        walk_guarded = 0;
        PMI2_Abort(1, "the walk ends here");
        line("PMI2_Abort", "came back");
        _exit(9);
    }
    wait_for_the_kill();
}

static void finalize(void)
{
    CODE("PMI2_KVS_Fence", PMI2_KVS_Fence());
    CODE("PMI2_Finalize", PMI2_Finalize());
    INITIALIZED();
    APART("PMI2_Finalize.twice", PMI2_Finalize());
    APART("PMI2_Job_GetId", PMI2_Job_GetId(text, ROOM));
    APART("PMI2_Job_GetRank", PMI2_Job_GetRank(&n));
    APART("PMI2_Info_GetSize", PMI2_Info_GetSize(&n));
    APART("PMI2_KVS_Put", PMI2_KVS_Put("key", "value"));
    APART("PMI2_KVS_Fence.late", PMI2_KVS_Fence());
    APART("PMI2_KVS_Get", PMI2_KVS_Get(NULL, PMI2_ID_NULL, "exchange-0", text, ROOM, &vallen));
    APART("PMI2_Info_PutNodeAttr", PMI2_Info_PutNodeAttr("name", "value"));
    APART("PMI2_Info_GetNodeAttr", PMI2_Info_GetNodeAttr("name", text, ROOM, &found, 0));
    APART("PMI2_Info_GetJobAttr", PMI2_Info_GetJobAttr("universeSize", text, ROOM, &found));
    APART("PMI2_Nameserv_lookup", PMI2_Nameserv_lookup("service", NULL, text, ROOM));
}

int main(int argc, char **argv)
{
    static const struct section sections[] = {
        {"before", before, USUALLY},
        {"init", init, ALWAYS},
        {"world", world, USUALLY},
        {"arguments", arguments, USUALLY},
        {"exchange", exchange, USUALLY},
        {"cuts", cuts, USUALLY},
        {"bounds", bounds, USUALLY},
        {"attributes", attributes, USUALLY},
        {"job", job, USUALLY},
        {"services", services, USUALLY},
        {"ring", ring, USUALLY},
        {"twice", twice, USUALLY},
        {"texts", texts, USUALLY},
        {"connect", connections, USUALLY},
        {"spawn", spawn, USUALLY},
        {"cliffs", cliffs, ON_DEMAND},
        {"abort", abort_job, ON_DEMAND},
        {"finalize", finalize, ALWAYS},
    };
    return walk(sections, sizeof sections / sizeof *sections, argc, argv);
}
