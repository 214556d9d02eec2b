/*
 * PMI-2: what a rank asks of the launcher that started it.
 *
 * The interface of libpmi2.so.0. Programs that were written for <slurm/pmi2.h> compile with this
 * header, and programs that were linked with its library run with ours. The words of the wire
 * protocol, which Slurm's header has as well, are not here.
 *
 * Rules for all functions:
 *
 * - They return PMI2_SUCCESS or one of the codes below. Where something fails, output arguments hold
 *   nothing of use.
 * - Without PMI2_Init, and after PMI2_Finalize, those that ask the launcher fail with PMI2_ERR_OTHER.
 * - PMI2_ERR_INVALID_ARG, _KEY and _VAL: null. _LENGTH: a buffer has no room. _SIZE: a number is negative.
 *   PMI2_ERR_OTHER: anything else, such as too long, unknown or refused.
 * - A length counts the terminating null byte. What is handed out is always terminated; where it does
 *   not fit it is cut short, and only PMI2_KVS_Get tells.
 * - They may be called from any thread. PMI2_Init and PMI2_Finalize are called by one thread while no
 *   other is inside.
 * - A child after fork is no rank: there they fail, and the parent is not disturbed.
 */
#ifndef PMI2_H_INCLUDED
#define PMI2_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Bounds and codes ------------------------------------------------------------------------- */

/** Room for a key, and for the name of an attribute. */
#define PMI2_MAX_KEYLEN 64
/** Room for a value. */
#define PMI2_MAX_VALLEN 1024
/** Room for the value of an attribute. */
#define PMI2_MAX_ATTRVALUE 1024
/** No rank in particular. */
#define PMI2_ID_NULL (-1)

/** It worked. */
#define PMI2_SUCCESS 0
/** It did not. */
#define PMI2_FAIL (-1)
/** Initialisation is missing, or failed. */
#define PMI2_ERR_INIT 1
/** No memory. */
#define PMI2_ERR_NOMEM 2
/** An argument is null or makes no sense. */
#define PMI2_ERR_INVALID_ARG 3
/** The key is null. */
#define PMI2_ERR_INVALID_KEY 4
/** The key is too long. */
#define PMI2_ERR_INVALID_KEY_LENGTH 5
/** The value is null. */
#define PMI2_ERR_INVALID_VAL 6
/** The value is too long. */
#define PMI2_ERR_INVALID_VAL_LENGTH 7
/** The buffer has no room. */
#define PMI2_ERR_INVALID_LENGTH 8
/** These four are not used by any function. */
#define PMI2_ERR_INVALID_NUM_ARGS 9
#define PMI2_ERR_INVALID_ARGS 10
#define PMI2_ERR_INVALID_NUM_PARSED 11
#define PMI2_ERR_INVALID_KEYVALP 12
/** A number of elements makes no sense. */
#define PMI2_ERR_INVALID_SIZE 13
/** Anything else: not initialised, too long, unknown, refused, or the launcher is gone. */
#define PMI2_ERR_OTHER 14

/* ---- Types ------------------------------------------------------------------------------------ */

/**
 * How two worlds talk while they connect, where their launchers cannot: `read` and `write` are called
 * with `ctx` and return 0 on success; `isMaster` is 1 on one side and 0 on the other, or -1 on both.
 */
typedef struct PMI2_Connect_comm {
    int (*read)(void *buf, int maxlen, void *ctx);
    int (*write)(const void *buf, int len, void *ctx);
    void *ctx;
    int isMaster;
} PMI2_Connect_comm_t;

/**
 * A hint, with its key and value. Its layout is that of an old MPICH, whose own hints were handed over
 * as they were: only `key`, `value` and `next` matter here, the other members are not looked at.
 *
 * Where an array of hints goes with an array of counts, each element `vector[i]` points to an array of
 * `counts[i]` of them; `next` is not followed. Where one pointer is all (the name service), it is the
 * first of a list that `next` links, and may be null.
 */
typedef struct MPID_Info {
    int handle;
    int pobj_mutex;
    int ref_count;
    struct MPID_Info *next;
    char *key;
    char *value;
} MPID_Info;

/** Another name of it. */
#define PMI2U_Info MPID_Info

/* ---- Beginning and end ------------------------------------------------------------------------ */

/**
 * Begins. `*spawned` is not 0 if the world was started by PMI2_Job_Spawn; `*size` is the number of its
 * ranks, `*rank` which of them this is, `*appnum` which of the programs on the command line.
 *
 * Without a launcher the process is a world of one rank, and that is a success.
 * PMI2_ERR_OTHER: the launcher does not answer, or speaks no PMI-2.
 */
int PMI2_Init(int *spawned, int *size, int *rank, int *appnum);

/** Not 0 once PMI2_Init has succeeded, and for ever after. */
int PMI2_Initialized(void);

/** Ends. The rank takes leave of the launcher; until then its exit counts as a failure. Harmless twice. */
int PMI2_Finalize(void);

/**
 * Ends the whole world (`flag` is not 0) or this rank, with `msg`, which may be null, in the report.
 * Does not return.
 */
int PMI2_Abort(int flag, const char msg[]);

/* ---- The world -------------------------------------------------------------------------------- */

/** The world's name, cut to `jobid_size` bytes. PMI2_KVS_Get and PMI2_Job_Connect take it. */
int PMI2_Job_GetId(char jobid[], int jobid_size);

/** Which rank of the world this is. */
int PMI2_Job_GetRank(int *rank);

/** How many ranks there are. (Its name says "on this node"; so do old descriptions. No library did that.) */
int PMI2_Info_GetSize(int *size);

/**
 * Makes the space of another world readable from this one by PMI2_KVS_Get. Not collective.
 * PMI2_ERR_OTHER: there is no such world, or not supported. `conn` may be null.
 */
int PMI2_Job_Connect(const char jobid[], PMI2_Connect_comm_t *conn);

/** Takes that back. */
int PMI2_Job_Disconnect(const char jobid[]);

/**
 * Starts a new world of `count` programs: `maxprocs[i]` ranks of `cmds[i]` with the `argcs[i]` words of
 * `argvs[i]` (without the program's name) and the hints `info_keyval_vectors[i]`. The pairs that
 * `preput_keyval_vector` points to are in its space before its ranks begin. Its name is copied into
 * `jobId`, a buffer of `jobIdSize` bytes, and `errors` receives a code for each program.
 */
int PMI2_Job_Spawn(int count, const char *cmds[], int argcs[], const char **argvs[], const int maxprocs[],
                   const int info_keyval_sizes[], const struct MPID_Info *info_keyval_vectors[],
                   int preput_keyval_size, const struct MPID_Info *preput_keyval_vector[], char jobId[],
                   int jobIdSize, int errors[]);

/* ---- The key-value space ---------------------------------------------------------------------- */

/**
 * Puts a pair into the world's space. Others see it after PMI2_KVS_Fence. What a get finds where a key
 * was put twice between two fences is undefined.
 *
 * PMI2_ERR_OTHER: an empty key, a key of PMI2_MAX_KEYLEN bytes or more, a value of PMI2_MAX_VALLEN bytes or more.
 */
int PMI2_KVS_Put(const char key[], const char value[]);

/** Waits until all ranks of the world have called it. What was put before is then seen by all. */
int PMI2_KVS_Fence(void);

/**
 * Copies the value of a key into `value`, a buffer of `maxvalue` bytes. `jobid` names a world that this
 * one is connected to; null is this one. `src_pmi_id` is the rank that has put the key, if known, else
 * PMI2_ID_NULL; it is a hint.
 *
 * `*vallen` becomes the length of the value, without the null byte; negative if it was cut short.
 * PMI2_ERR_OTHER: nobody has put the key.
 */
int PMI2_KVS_Get(const char *jobid, int src_pmi_id, const char key[], char value[], int maxvalue, int *vallen);

/**
 * Each rank gives a string and receives those of its two neighbours in a ring: `*rank` is its place
 * there, which need not be its rank, `*ranks` the number of ranks, `left` the string of the one before it
 * and `right` of the one after it. `maxvalue` is the size of all three buffers. Collective. Alone, a
 * rank is its own neighbour.
 */
int PMIX_Ring(const char value[], int *rank, int *ranks, char left[], char right[], int maxvalue);

/** For conditional compilation: the function above is here. */
#define HAVE_PMIX_RING 1

/* ---- Attributes of the node and of the world --------------------------------------------------- */

/** Puts an attribute that the ranks of this world on this node may read, at once. */
int PMI2_Info_PutNodeAttr(const char name[], const char value[]);

/**
 * Copies an attribute of this node into `value`, a buffer of `valuelen` bytes. `*found` tells whether
 * there is one; that there is none is a success. If `waitfor` is not 0, waits until some rank puts it.
 */
int PMI2_Info_GetNodeAttr(const char name[], char value[], int valuelen, int *found, int waitfor);

/**
 * The same for a value that is a list of integers with commas: `array` has room for `arraylen` of
 * them, `*outlen` becomes the number of those stored. Does not wait.
 */
int PMI2_Info_GetNodeAttrIntArray(const char name[], int array[], int arraylen, int *outlen, int *found);

/**
 * Copies an attribute of this world into `value`, a buffer of `valuelen` bytes. `*found` tells whether
 * there is one; that there is none is a success. `PMI_process_mapping` and `universeSize` are known.
 */
int PMI2_Info_GetJobAttr(const char name[], char value[], int valuelen, int *found);

/** The same for a list of integers with commas; see PMI2_Info_GetNodeAttrIntArray. */
int PMI2_Info_GetJobAttrIntArray(const char name[], int array[], int arraylen, int *outlen, int *found);

/* ---- Names ------------------------------------------------------------------------------------ */

/** Tells other worlds the port of a service. */
int PMI2_Nameserv_publish(const char service_name[], const struct MPID_Info *info_ptr, const char port[]);

/** Copies the port of a service into `port`, a buffer of `portLen` bytes. An error if nobody has published it. */
int PMI2_Nameserv_lookup(const char service_name[], const struct MPID_Info *info_ptr, char port[], int portLen);

/** Takes it back. */
int PMI2_Nameserv_unpublish(const char service_name[], const struct MPID_Info *info_ptr);

#ifdef __cplusplus
}
#endif

#endif
