/*
 * PMI-1: the interface between a rank and the launcher that started it.
 *
 * libpmi.so.0 provides these functions. Programs written for <slurm/pmi.h> or for MPICH's pmi.h
 * compile with this header, and programs linked with those libraries run with this one.
 *
 * Rules for all functions ("job" is the set of ranks that were started together):
 *
 * - They return PMI_SUCCESS or one of the codes below. After a failure, output arguments are undefined.
 * - Except for PMI_Init, PMI_Initialized, PMI_Finalize, PMI_Abort and those that end in _length_max
 *   or are about options, they fail with PMI_FAIL before PMI_Init and after PMI_Finalize.
 * - A length includes the terminating null byte: a key has at most PMI_KVS_Get_key_length_max - 1
 *   bytes. Output strings are always terminated, and never truncated silently.
 * - Any thread may call them. PMI_Init and PMI_Finalize must not be called while another thread is
 *   in any of them.
 * - In a forked child all functions fail, and the parent is not disturbed.
 */
#ifndef PMI_H
#define PMI_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Codes ------------------------------------------------------------------------------------ */

/** The call succeeded. */
#define PMI_SUCCESS 0
/** The call failed: not initialised, refused by the launcher, or the launcher has disconnected. */
#define PMI_FAIL (-1)
/** PMI is not initialised. */
#define PMI_ERR_INIT 1
/** Out of memory, or a buffer is too small. */
#define PMI_ERR_NOMEM 2
/** An argument is null or invalid. */
#define PMI_ERR_INVALID_ARG 3
/** The key is null, too long, or unknown. */
#define PMI_ERR_INVALID_KEY 4
/** The buffer for a key is too short. */
#define PMI_ERR_INVALID_KEY_LENGTH 5
/** The value is null or too long. */
#define PMI_ERR_INVALID_VAL 6
/** The buffer for a value is too short. */
#define PMI_ERR_INVALID_VAL_LENGTH 7
/** The buffer is too short. */
#define PMI_ERR_INVALID_LENGTH 8
/** The number of words to parse is not positive. */
#define PMI_ERR_INVALID_NUM_ARGS 9
/** The words to parse are null. */
#define PMI_ERR_INVALID_ARGS 10
/** The pointer for the number of parsed words is null. */
#define PMI_ERR_INVALID_NUM_PARSED 11
/** The pointer for the key-value pairs is null. */
#define PMI_ERR_INVALID_KEYVALP 12
/** The pointer for the number of pairs is null. */
#define PMI_ERR_INVALID_SIZE 13
/** The name of the key-value space is null, too long, or unknown. */
#define PMI_ERR_INVALID_KVS 14

/** A truth value: PMI_TRUE or PMI_FALSE. */
typedef int PMI_BOOL;
#define PMI_TRUE 1
#define PMI_FALSE 0

/* ---- Initialisation and finalisation ---------------------------------------------------------- */

/**
 * Initialises PMI. Sets `*spawned` to PMI_TRUE if the job was started by PMI_Spawn_multiple.
 *
 * Without a launcher the process is a job of one rank, and the call succeeds. A second call changes
 * nothing and succeeds. PMI_ERR_INVALID_ARG: `spawned` is null. PMI_FAIL: the launcher does not
 * answer, or does not speak PMI-1.
 */
int PMI_Init(int *spawned);

/**
 * Sets `*initialized` to whether PMI_Init has succeeded and PMI_Finalize has not been called since.
 * PMI_ERR_INVALID_ARG: `initialized` is null.
 */
int PMI_Initialized(PMI_BOOL *initialized);

/**
 * Finalises PMI. If a rank exits without this call, the launcher reports a failure. A second call
 * succeeds.
 */
int PMI_Finalize(void);

/**
 * Ends the whole job. `exit_code` becomes the launcher's exit code; `error_msg`, which may be null,
 * appears in the launcher's report. Does not return.
 */
int PMI_Abort(int exit_code, const char error_msg[]);

/* ---- The job ---------------------------------------------------------------------------------- */

/** Sets `*size` to the number of ranks. PMI_ERR_INVALID_ARG: `size` is null. */
int PMI_Get_size(int *size);

/** Sets `*rank` to the number of this rank, from 0. PMI_ERR_INVALID_ARG: `rank` is null. */
int PMI_Get_rank(int *rank);

/**
 * Sets `*size` to the largest number of ranks that could run, including those that do; -1 if the
 * launcher does not know. PMI_ERR_INVALID_ARG: `size` is null.
 */
int PMI_Get_universe_size(int *size);

/**
 * Sets `*appnum` to the position of this rank's program on the launcher's command line; -1 if the
 * launcher does not know. PMI_ERR_INVALID_ARG: `appnum` is null.
 */
int PMI_Get_appnum(int *appnum);

/** Sets `*length` to the size of a buffer for PMI_Get_id. PMI_ERR_INVALID_ARG: `length` is null. */
int PMI_Get_id_length_max(int *length);

/**
 * Copies the name of the job, which is the same for all its ranks and different from that of any
 * other job. PMI_ERR_INVALID_LENGTH: `length` is less than PMI_Get_id_length_max.
 * PMI_ERR_INVALID_ARG: `id_str` is null.
 */
int PMI_Get_id(char id_str[], int length);

/** Copies the name of the domain that shares key-value spaces, which is the job. Like PMI_Get_id. */
int PMI_Get_kvs_domain_id(char id_str[], int length);

/** Sets `*size` to the number of this job's ranks on this node. PMI_ERR_INVALID_ARG: `size` is null. */
int PMI_Get_clique_size(int *size);

/**
 * Copies the numbers of these ranks in ascending order. `length` is the number of elements of
 * `ranks`. PMI_ERR_INVALID_ARG: `ranks` is null. PMI_ERR_INVALID_LENGTH: `length` is less than
 * PMI_Get_clique_size.
 */
int PMI_Get_clique_ranks(int ranks[], int length);

/** Waits until all ranks of the job have called it. All values committed before are then visible. */
int PMI_Barrier(void);

/* Special groups for PMI_Barrier_group, in place of an array: all ranks, this rank, the ranks of this node. */
#define PMI_GROUP_WORLD ((int *)0)
#define PMI_GROUP_SELF ((int *)1)
#define PMI_GROUP_NODE ((int *)2)

/**
 * Waits until all ranks of a group have called it with the same `stringtag`, which may be null. Values that they have put are
 * then visible to each other, and after the next PMI_Barrier to all ranks. `group` is an array of `count` ranks, this one among
 * them, in any order, or a special group. From MPICH's PMI 1.2; Slurm's library does not have it. PMI_ERR_INVALID_ARG: a rank
 * does not exist, or this one is missing. Threads of a rank may be in barriers of different groups at the same time, and one of
 * them in PMI_Barrier. What others put and exchange meanwhile may be hidden again after that PMI_Barrier, until the next one.
 * PMI_FAIL: a rank of the group has died, or the launcher is not ScELA and the group is
 * neither PMI_GROUP_SELF nor PMI_GROUP_WORLD without a tag.
 */
int PMI_Barrier_group(const int *group, int count, const char *stringtag);

/* ---- Key-value spaces ------------------------------------------------------------------------- */

/** Sets `*length` to the size of a buffer for a space's name. PMI_ERR_INVALID_ARG: `length` is null. */
int PMI_KVS_Get_name_length_max(int *length);

/** Sets `*length` to the size of a buffer for a key. PMI_ERR_INVALID_ARG: `length` is null. */
int PMI_KVS_Get_key_length_max(int *length);

/** Sets `*length` to the size of a buffer for a value. PMI_ERR_INVALID_ARG: `length` is null. */
int PMI_KVS_Get_value_length_max(int *length);

/**
 * Copies the name of the job's own space, which always exists. PMI_ERR_INVALID_ARG: `kvsname` is
 * null. PMI_ERR_INVALID_LENGTH: the name does not fit into `length` bytes.
 */
int PMI_KVS_Get_my_name(char kvsname[], int length);

/**
 * Creates a further space and copies its name. One rank calls it and sends the name to the others.
 * Codes as of PMI_KVS_Get_my_name; PMI_FAIL if the launcher supports only one space for each job.
 */
int PMI_KVS_Create(char kvsname[], int length);

/** Destroys a space of PMI_KVS_Create. PMI_ERR_INVALID_ARG: `kvsname` is null or no such space. */
int PMI_KVS_Destroy(const char kvsname[]);

/**
 * Puts a pair into a space. This rank sees it at once, other ranks after PMI_KVS_Commit by this
 * rank and PMI_Barrier by all. Each key may be put once; the value after a second put is undefined.
 *
 * PMI_ERR_INVALID_KVS, PMI_ERR_INVALID_KEY, PMI_ERR_INVALID_VAL: the argument is null or too long,
 * the key is empty, the space does not exist, or the protocol of a launcher other than ScELA's
 * cannot carry the text (blanks in keys, newlines).
 */
int PMI_KVS_Put(const char kvsname[], const char key[], const char value[]);

/** Commits all puts into the space. Does not wait for others. PMI_ERR_INVALID_ARG: `kvsname` is null. */
int PMI_KVS_Commit(const char kvsname[]);

/**
 * Copies the value of a key into `value`, a buffer of `length` bytes.
 *
 * PMI_ERR_INVALID_KVS: null, too long or unknown. PMI_ERR_INVALID_KEY: null, too long, or never
 * put. PMI_ERR_INVALID_VAL: `value` is null. PMI_ERR_INVALID_LENGTH: the value does not fit.
 */
int PMI_KVS_Get(const char kvsname[], const char key[], char value[], int length);

/**
 * Copies the first pair of a space, in no particular order; an empty key if there is none.
 *
 * PMI_ERR_INVALID_KVS, PMI_ERR_INVALID_KEY, PMI_ERR_INVALID_VAL: null or unknown.
 * PMI_ERR_INVALID_KEY_LENGTH, PMI_ERR_INVALID_VAL_LENGTH: a buffer is too short. PMI_FAIL: the
 * launcher is not ScELA's and cannot list pairs.
 */
int PMI_KVS_Iter_first(const char kvsname[], char key[], int key_len, char val[], int val_len);

/** Copies the next pair after PMI_KVS_Iter_first; an empty key at the end. Codes as there. */
int PMI_KVS_Iter_next(const char kvsname[], char key[], int key_len, char val[], int val_len);

/* ---- Name service and spawn ------------------------------------------------------------------- */

/** Publishes the port of a service. PMI_ERR_INVALID_ARG: null. PMI_FAIL: taken, or not supported. */
int PMI_Publish_name(const char service_name[], const char port[]);

/** Unpublishes it. PMI_ERR_INVALID_ARG: null. PMI_FAIL: not published, or not supported. */
int PMI_Unpublish_name(const char service_name[]);

/**
 * Copies the port of a service into `port`, which has room for a value of maximal length.
 * PMI_ERR_INVALID_ARG: null. PMI_FAIL: not published, or not supported.
 */
int PMI_Lookup_name(const char service_name[], char port[]);

/** A key and its value. */
typedef struct PMI_keyval_t {
    char *key;
    char *val;
} PMI_keyval_t;

/**
 * Starts a new job of `count` programs: `maxprocs[i]` ranks of `cmds[i]` with the arguments
 * `argvs[i]` (without the program's name, null at the end; `argvs` and its elements may be null)
 * and the hints `info_keyval_vectors[i]`, of which there are `info_keyval_sizesp[i]`. The pairs of
 * `preput_keyval_vector` are in the new job's space before its ranks start. `errors` has `count`
 * elements and receives a code for each program.
 *
 * PMI_ERR_INVALID_ARG: an argument is null or invalid; nothing is sent to the launcher. PMI_FAIL:
 * no rank was started, or not supported.
 */
int PMI_Spawn_multiple(int count, const char *cmds[], const char **argvs[], const int maxprocs[],
                       const int info_keyval_sizesp[], const PMI_keyval_t *info_keyval_vectors[],
                       int preput_keyval_size, const PMI_keyval_t preput_keyval_vector[], int errors[]);

/* ---- Command-line options, which are obsolete ------------------------------------------------- */

/**
 * Parses the pairs (words of the form PMI_NAME=VALUE) at the beginning of `args`. Sets
 * `*num_parsed` to the number of words parsed, `*keyvalp` to the pairs, which PMI_Free_keyvals
 * frees, and `*size` to their number. Finding none is a success.
 *
 * PMI_ERR_INVALID_NUM_PARSED, PMI_ERR_INVALID_ARGS, PMI_ERR_INVALID_KEYVALP, PMI_ERR_INVALID_SIZE:
 * null. PMI_ERR_INVALID_NUM_ARGS: not positive.
 */
int PMI_Parse_option(int num_args, char *args[], int *num_parsed, PMI_keyval_t **keyvalp, int *size);

/** Parses the pairs of a command line. Outputs as of PMI_Parse_option. PMI_ERR_INVALID_ARG: null. */
int PMI_Args_to_keyval(int *argcp, char *((*argvp)[]), PMI_keyval_t **keyvalp, int *size);

/** Frees `size` pairs of either function. PMI_ERR_INVALID_ARG: null with a size other than 0. */
int PMI_Free_keyvals(PMI_keyval_t keyvalp[], int size);

/**
 * Copies a description of the options into `str`, a buffer of `*length` bytes. PMI_ERR_INVALID_ARG:
 * null. PMI_ERR_NOMEM: too short; `*length` becomes the size needed.
 */
int PMI_Get_options(char *str, int *length);

#ifdef __cplusplus
}
#endif

#endif
