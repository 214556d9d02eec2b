/*
 * PMI-2: the interface between a rank and the launcher that started it.
 *
 * libpmi2.so.0 provides these functions. Programs written for <slurm/pmi2.h> compile with this
 * header, and programs linked with its library run with this one. Unlike Slurm's header, this one
 * does not define the words of the wire protocol.
 *
 * Rules for all functions ("job" is the set of ranks that were started together):
 *
 * - They return PMI2_SUCCESS or one of the codes below. After a failure, output arguments are
 *   undefined.
 * - Before PMI2_Init and after PMI2_Finalize, functions that ask the launcher fail with PMI2_ERR_OTHER.
 * - PMI2_ERR_INVALID_ARG, _KEY and _VAL: null. _LENGTH: a buffer has no room. _SIZE: a number is
 *   negative. PMI2_ERR_OTHER: any other failure, such as too long, unknown or refused.
 * - A length includes the terminating null byte. Output strings are always terminated. A string
 *   that does not fit is truncated, which only PMI2_KVS_Get reports.
 * - Any thread may call them. PMI2_Init and PMI2_Finalize must not be called while another thread
 *   is in any of them.
 * - In a forked child all functions fail, and the parent is not disturbed.
 */
#ifndef PMI2_H_INCLUDED
#define PMI2_H_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Bounds and codes ------------------------------------------------------------------------- */

/** The size of a buffer for a key, or for the name of an attribute. */
#define PMI2_MAX_KEYLEN 64
/** The size of a buffer for a value. */
#define PMI2_MAX_VALLEN 1024
/** The size of a buffer for the value of an attribute. */
#define PMI2_MAX_ATTRVALUE 1024
/** Instead of a rank: any rank. */
#define PMI2_ID_NULL (-1)

/** The call succeeded. */
#define PMI2_SUCCESS 0
/** The call failed by an internal error. */
#define PMI2_FAIL (-1)
/** PMI is not initialised, or its initialisation failed. */
#define PMI2_ERR_INIT 1
/** Out of memory. */
#define PMI2_ERR_NOMEM 2
/** An argument is null or invalid. */
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
/** No function returns these four. */
#define PMI2_ERR_INVALID_NUM_ARGS 9
#define PMI2_ERR_INVALID_ARGS 10
#define PMI2_ERR_INVALID_NUM_PARSED 11
#define PMI2_ERR_INVALID_KEYVALP 12
/** A number of elements is invalid. */
#define PMI2_ERR_INVALID_SIZE 13
/** Any other failure: not initialised, too long, unknown, refused, or the launcher has disconnected. */
#define PMI2_ERR_OTHER 14

/* ---- Types ------------------------------------------------------------------------------------ */

/**
 * How two jobs communicate while they connect, if their launchers cannot: `read` and `write` are
 * called with `ctx` and return 0 on success; `isMaster` is 1 on one side and 0 on the other, or -1
 * on both.
 */
typedef struct PMI2_Connect_comm {
    int (*read)(void *buf, int maxlen, void *ctx);
    int (*write)(const void *buf, int len, void *ctx);
    void *ctx;
    int isMaster;
} PMI2_Connect_comm_t;

/**
 * A hint with its key and value. The layout is that of an old MPICH, which passed its own hints
 * unconverted: only `key`, `value` and `next` are read here.
 *
 * An array of hints comes with an array of counts: each element `vector[i]` points to an array of
 * `counts[i]` hints, and `next` is not followed. A single pointer (name service) is the head of a
 * list linked by `next`, and may be null.
 */
typedef struct MPID_Info {
    int handle;
    int pobj_mutex;
    int ref_count;
    struct MPID_Info *next;
    char *key;
    char *value;
} MPID_Info;

/** An alias. */
#define PMI2U_Info MPID_Info

/* ---- Initialisation and finalisation ---------------------------------------------------------- */

/**
 * Initialises PMI. Sets `*spawned` to non-zero if the job was started by PMI2_Job_Spawn, `*size` to
 * the number of its ranks, `*rank` to the number of this rank, and `*appnum` to the position of its
 * program on the launcher's command line.
 *
 * Without a launcher the process is a job of one rank, and the call succeeds. PMI2_ERR_OTHER: the
 * launcher does not answer, or does not speak PMI-2.
 */
int PMI2_Init(int *spawned, int *size, int *rank, int *appnum);

/** Returns non-zero once PMI2_Init has succeeded, also after PMI2_Finalize. */
int PMI2_Initialized(void);

/**
 * Finalises PMI. If a rank exits without this call, the launcher reports a failure. A second call
 * succeeds.
 */
int PMI2_Finalize(void);

/**
 * Ends the whole job (`flag` is not 0) or this rank. `msg`, which may be null, appears in the
 * launcher's report. Does not return.
 */
int PMI2_Abort(int flag, const char msg[]);

/* ---- The job ---------------------------------------------------------------------------------- */

/** Copies the name of the job, truncated to `jobid_size` bytes, for PMI2_KVS_Get and PMI2_Job_Connect. */
int PMI2_Job_GetId(char jobid[], int jobid_size);

/** Sets `*rank` to the number of this rank. */
int PMI2_Job_GetRank(int *rank);

/**
 * Sets `*size` to the number of ranks of the job. (Old descriptions say "on this node", as the
 * function's name suggests, but no library does that.)
 */
int PMI2_Info_GetSize(int *size);

/**
 * Makes the space of another job readable for PMI2_KVS_Get. Not collective. `conn` may be null.
 * PMI2_ERR_OTHER: no such job, or not supported.
 */
int PMI2_Job_Connect(const char jobid[], PMI2_Connect_comm_t *conn);

/** Ends such a connection. */
int PMI2_Job_Disconnect(const char jobid[]);

/**
 * Starts a new job of `count` programs: `maxprocs[i]` ranks of `cmds[i]` with the `argcs[i]`
 * arguments `argvs[i]` (without the program's name) and the `info_keyval_sizes[i]` hints
 * `info_keyval_vectors[i]`: an array, or a list linked by `next`, as Intel MPI passes it. Elements may
 * also lack the number `pobj_mutex`, as those of MVAPICH2 2.3 do. The pairs
 * that `preput_keyval_vector` points to are in the new job's space before its ranks start. Copies
 * the name of the job into `jobId`, a buffer of `jobIdSize` bytes; `errors` receives a code for each
 * program.
 */
int PMI2_Job_Spawn(int count, const char *cmds[], int argcs[], const char **argvs[], const int maxprocs[],
                   const int info_keyval_sizes[], const struct MPID_Info *info_keyval_vectors[],
                   int preput_keyval_size, const struct MPID_Info *preput_keyval_vector[], char jobId[],
                   int jobIdSize, int errors[]);

/* ---- The key-value space ---------------------------------------------------------------------- */

/**
 * Puts a pair into the job's space. Other ranks see it after PMI2_KVS_Fence. The value of a key
 * that is put twice between two fences is undefined.
 *
 * PMI2_ERR_OTHER: the key is empty or has PMI2_MAX_KEYLEN bytes or more, or the value has
 * PMI2_MAX_VALLEN bytes or more.
 */
int PMI2_KVS_Put(const char key[], const char value[]);

/** Waits until all ranks of the job have called it. All values put before are then visible. */
int PMI2_KVS_Fence(void);

/**
 * Copies the value of a key into `value`, a buffer of `maxvalue` bytes. `jobid` names a job that
 * this one is connected to; null is this job. `src_pmi_id` is a hint: the rank that has put the
 * key, or PMI2_ID_NULL.
 *
 * Sets `*vallen` to the length of the value without the null byte, negative if it was truncated.
 * PMI2_ERR_OTHER: the key was never put.
 */
int PMI2_KVS_Get(const char *jobid, int src_pmi_id, const char key[], char value[], int maxvalue, int *vallen);

/**
 * Exchanges strings in a ring: each rank passes `value` and receives the strings of its two
 * neighbours, `left` of the one before it and `right` of the one after it. Sets `*rank` to this
 * rank's position in the ring, which may differ from its rank, and `*ranks` to the number of ranks.
 * `maxvalue` is the size of all three buffers. Collective. A single rank is its own neighbour.
 */
int PMIX_Ring(const char value[], int *rank, int *ranks, char left[], char right[], int maxvalue);

/** For conditional compilation: PMIX_Ring is available. */
#define HAVE_PMIX_RING 1

/* ---- Attributes of the node and of the job ----------------------------------------------------- */

/** Puts an attribute of the node. The job's ranks on this node see it at once. */
int PMI2_Info_PutNodeAttr(const char name[], const char value[]);

/**
 * Copies an attribute of this node into `value`, a buffer of `valuelen` bytes. Sets `*found` to
 * whether it exists; the call succeeds in either case. If `waitfor` is not 0, waits until a rank
 * puts it.
 */
int PMI2_Info_GetNodeAttr(const char name[], char value[], int valuelen, int *found, int waitfor);

/**
 * The same for a comma-separated list of integers: stores at most `arraylen` of them in `array`,
 * and their number in `*outlen`. Does not wait.
 */
int PMI2_Info_GetNodeAttrIntArray(const char name[], int array[], int arraylen, int *outlen, int *found);

/**
 * Copies an attribute of this job into `value`, a buffer of `valuelen` bytes. Sets `*found` to
 * whether it exists; the call succeeds in either case. Known attributes: `PMI_process_mapping`,
 * `universeSize`, which is negative if nothing bounds the number of ranks.
 */
int PMI2_Info_GetJobAttr(const char name[], char value[], int valuelen, int *found);

/** The same for a comma-separated list of integers; see PMI2_Info_GetNodeAttrIntArray. */
int PMI2_Info_GetJobAttrIntArray(const char name[], int array[], int arraylen, int *outlen, int *found);

/* ---- Name service ----------------------------------------------------------------------------- */

/** Publishes the port of a service. */
int PMI2_Nameserv_publish(const char service_name[], const struct MPID_Info *info_ptr, const char port[]);

/** Copies the port of a service into `port`, a buffer of `portLen` bytes. Fails if it is not published. */
int PMI2_Nameserv_lookup(const char service_name[], const struct MPID_Info *info_ptr, char port[], int portLen);

/** Unpublishes it. */
int PMI2_Nameserv_unpublish(const char service_name[], const struct MPID_Info *info_ptr);

#ifdef __cplusplus
}
#endif

#endif
