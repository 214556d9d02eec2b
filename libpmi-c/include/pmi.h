/*
 * PMI-1: what a rank asks of the launcher that started it.
 *
 * The interface of libpmi.so.0. Programs that were written for <slurm/pmi.h> or MPICH's pmi.h
 * compile with this header, and programs that were linked with their libraries run with ours.
 *
 * Rules for all functions:
 *
 * - They return PMI_SUCCESS or one of the codes below. Where something fails, output arguments hold
 *   nothing of use.
 * - Except for PMI_Init, PMI_Initialized, PMI_Finalize, PMI_Abort and those that end in _length_max
 *   or are about options, they fail with PMI_FAIL before PMI_Init and after PMI_Finalize.
 * - A length counts the terminating null byte: a key of a rank has at most PMI_KVS_Get_key_length_max
 *   less one bytes. What is handed out is always terminated; nothing is cut short in silence.
 * - They may be called from any thread. PMI_Init and PMI_Finalize are called by one thread while no
 *   other is inside.
 * - A child after fork is no rank: there they fail, and the parent is not disturbed.
 */
#ifndef PMI_H
#define PMI_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Codes ------------------------------------------------------------------------------------ */

/** It worked. */
#define PMI_SUCCESS 0
/** It did not: not initialised, the launcher refused, or the launcher is gone. */
#define PMI_FAIL (-1)
/** Initialisation is missing. */
#define PMI_ERR_INIT 1
/** No memory, or a buffer that is too small. */
#define PMI_ERR_NOMEM 2
/** An argument is null or makes no sense. */
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
/** There is no place for the number of parsed words. */
#define PMI_ERR_INVALID_NUM_PARSED 11
/** There is no place for the key-value pairs. */
#define PMI_ERR_INVALID_KEYVALP 12
/** There is no place for the number of pairs. */
#define PMI_ERR_INVALID_SIZE 13
/** The name of the key-value space is null, too long, or unknown. */
#define PMI_ERR_INVALID_KVS 14

/** A truth value: PMI_TRUE or PMI_FALSE. */
typedef int PMI_BOOL;
#define PMI_TRUE 1
#define PMI_FALSE 0

/* ---- Beginning and end ------------------------------------------------------------------------ */

/**
 * Begins. `*spawned` becomes PMI_TRUE if the world was started by PMI_Spawn_multiple.
 *
 * Without a launcher the process is a world of one rank, and that is a success. A second call
 * changes nothing and succeeds. PMI_ERR_INVALID_ARG: `spawned` is null. PMI_FAIL: the launcher does
 * not answer, or speaks no PMI-1.
 */
int PMI_Init(int *spawned);

/** Has PMI_Init succeeded, and not been finalized since? PMI_ERR_INVALID_ARG: `initialized` is null. */
int PMI_Initialized(PMI_BOOL *initialized);

/** Ends. The rank takes leave of the launcher; until then its exit counts as a failure. Harmless twice. */
int PMI_Finalize(void);

/**
 * Ends the whole world, with `exit_code` as the launcher's exit code and `error_msg`, which may be
 * null, in its report. Does not return.
 */
int PMI_Abort(int exit_code, const char error_msg[]);

/* ---- The world -------------------------------------------------------------------------------- */

/** How many ranks there are. PMI_ERR_INVALID_ARG: `size` is null. */
int PMI_Get_size(int *size);

/** Which of them this is, from 0 on. PMI_ERR_INVALID_ARG: `rank` is null. */
int PMI_Get_rank(int *rank);

/**
 * How many ranks there is room for, those that run included; -1 where the launcher does not know.
 * PMI_ERR_INVALID_ARG: `size` is null.
 */
int PMI_Get_universe_size(int *size);

/**
 * Which of the programs on the launcher's command line this is; -1 where the launcher does not know.
 * PMI_ERR_INVALID_ARG: `appnum` is null.
 */
int PMI_Get_appnum(int *appnum);

/** How long a buffer for PMI_Get_id has to be. PMI_ERR_INVALID_ARG: `length` is null. */
int PMI_Get_id_length_max(int *length);

/**
 * The world's name, the same for all of its ranks and for no other world.
 * PMI_ERR_INVALID_LENGTH: `length` is less than PMI_Get_id_length_max says. PMI_ERR_INVALID_ARG:
 * `id_str` is null.
 */
int PMI_Get_id(char id_str[], int length);

/** The name of what shares key-value spaces with this world. Arguments and codes as of PMI_Get_id. */
int PMI_Get_kvs_domain_id(char id_str[], int length);

/** How many ranks of this world are on this node, this one included. PMI_ERR_INVALID_ARG: `size` is null. */
int PMI_Get_clique_size(int *size);

/**
 * Which ranks these are, ascending. `length` is the number of elements of `ranks`.
 * PMI_ERR_INVALID_ARG: `ranks` is null. PMI_ERR_INVALID_LENGTH: less than PMI_Get_clique_size.
 */
int PMI_Get_clique_ranks(int ranks[], int length);

/** Waits until all ranks of the world have called it. What was committed before is then seen by all. */
int PMI_Barrier(void);

/* ---- Key-value spaces ------------------------------------------------------------------------- */

/** How long a buffer for the name of a space has to be. PMI_ERR_INVALID_ARG: `length` is null. */
int PMI_KVS_Get_name_length_max(int *length);

/** How long a buffer for a key has to be. PMI_ERR_INVALID_ARG: `length` is null. */
int PMI_KVS_Get_key_length_max(int *length);

/** How long a buffer for a value has to be. PMI_ERR_INVALID_ARG: `length` is null. */
int PMI_KVS_Get_value_length_max(int *length);

/**
 * The name of the world's own space, which exists from the beginning.
 * PMI_ERR_INVALID_ARG: `kvsname` is null. PMI_ERR_INVALID_LENGTH: the name does not fit into `length`.
 */
int PMI_KVS_Get_my_name(char kvsname[], int length);

/**
 * Makes a further space and hands out its name. One rank calls it, and tells others the name.
 * Codes as of PMI_KVS_Get_my_name; PMI_FAIL where the launcher has one space for each world only.
 */
int PMI_KVS_Create(char kvsname[], int length);

/** Removes what PMI_KVS_Create made. PMI_ERR_INVALID_ARG: `kvsname` is null or no such space. */
int PMI_KVS_Destroy(const char kvsname[]);

/**
 * Puts a pair into a space. This rank sees it at once, others after PMI_KVS_Commit here and PMI_Barrier
 * everywhere. Each key is put once; what a get finds after a second put is undefined.
 *
 * PMI_ERR_INVALID_KVS, PMI_ERR_INVALID_KEY, PMI_ERR_INVALID_VAL: the argument is null or as long as
 * its maximum, the key is empty, there is no such space, or the launcher (another than ours) has no way
 * to carry it: then blanks in keys, and newlines.
 */
int PMI_KVS_Put(const char kvsname[], const char key[], const char value[]);

/** Hands over all that was put into the space. Does not wait for others. PMI_ERR_INVALID_ARG: `kvsname` is null. */
int PMI_KVS_Commit(const char kvsname[]);

/**
 * Copies the value of a key into `value`, a buffer of `length` bytes.
 *
 * PMI_ERR_INVALID_KVS: null, too long or unknown. PMI_ERR_INVALID_KEY: null, too long, or nobody has
 * put it. PMI_ERR_INVALID_VAL: `value` is null. PMI_ERR_INVALID_LENGTH: the value does not fit.
 */
int PMI_KVS_Get(const char kvsname[], const char key[], char value[], int length);

/**
 * The first pair of a space, in no particular order; an empty key when there is none.
 *
 * PMI_ERR_INVALID_KVS, PMI_ERR_INVALID_KEY, PMI_ERR_INVALID_VAL: null or unknown.
 * PMI_ERR_INVALID_KEY_LENGTH, PMI_ERR_INVALID_VAL_LENGTH: a buffer is too short. PMI_FAIL: the launcher
 * (another than ours) has no way to tell.
 */
int PMI_KVS_Iter_first(const char kvsname[], char key[], int key_len, char val[], int val_len);

/** The next pair after PMI_KVS_Iter_first; an empty key at the end. Codes as there. */
int PMI_KVS_Iter_next(const char kvsname[], char key[], int key_len, char val[], int val_len);

/* ---- Names and new worlds --------------------------------------------------------------------- */

/** Tells other worlds the port of a service. PMI_ERR_INVALID_ARG: null. PMI_FAIL: taken, or not supported. */
int PMI_Publish_name(const char service_name[], const char port[]);

/** Takes that back. PMI_ERR_INVALID_ARG: null. PMI_FAIL: nobody has published it, or not supported. */
int PMI_Unpublish_name(const char service_name[]);

/**
 * Copies the port of a service into `port`, which has room for a value of maximal length.
 * PMI_ERR_INVALID_ARG: null. PMI_FAIL: nobody has published it, or not supported.
 */
int PMI_Lookup_name(const char service_name[], char port[]);

/** A key and its value. */
typedef struct PMI_keyval_t {
    char *key;
    char *val;
} PMI_keyval_t;

/**
 * Starts a new world of `count` programs: `maxprocs[i]` ranks of `cmds[i]`, with the words `argvs[i]`
 * (without the program's name, null at the end; `argvs` and its elements may be null) and the hints
 * `info_keyval_vectors[i]`, so many as `info_keyval_sizesp[i]` says. The pairs of
 * `preput_keyval_vector` are in the new world's space before its ranks begin. `errors` has `count`
 * elements and receives a code for each program.
 *
 * PMI_ERR_INVALID_ARG: an argument is null or makes no sense; nothing is sent then. PMI_FAIL: nothing was
 * started, or not supported.
 */
int PMI_Spawn_multiple(int count, const char *cmds[], const char **argvs[], const int maxprocs[],
                       const int info_keyval_sizesp[], const PMI_keyval_t *info_keyval_vectors[],
                       int preput_keyval_size, const PMI_keyval_t preput_keyval_vector[], int errors[]);

/* ---- Options of a command line, which nobody has used for long ---------------------------------- */

/**
 * Takes the pairs, words PMI_NAME=VALUE, from the beginning of `args`. `*num_parsed` becomes the number
 * of words that were taken, `*keyvalp` the pairs, to be freed by PMI_Free_keyvals, and `*size` their
 * number. That there are none is a success.
 *
 * PMI_ERR_INVALID_NUM_PARSED, PMI_ERR_INVALID_ARGS, PMI_ERR_INVALID_KEYVALP, PMI_ERR_INVALID_SIZE:
 * null. PMI_ERR_INVALID_NUM_ARGS: not positive.
 */
int PMI_Parse_option(int num_args, char *args[], int *num_parsed, PMI_keyval_t **keyvalp, int *size);

/** Takes the pairs out of a command line. Outputs as of PMI_Parse_option. PMI_ERR_INVALID_ARG: null. */
int PMI_Args_to_keyval(int *argcp, char *((*argvp)[]), PMI_keyval_t **keyvalp, int *size);

/** Frees `size` pairs that one of the two handed out. PMI_ERR_INVALID_ARG: null, but not with a size of 0. */
int PMI_Free_keyvals(PMI_keyval_t keyvalp[], int size);

/**
 * Copies a text about the options into `str`, a buffer of `*length` bytes.
 * PMI_ERR_INVALID_ARG: null. PMI_ERR_NOMEM: too short; `*length` says what is needed.
 */
int PMI_Get_options(char *str, int *length);

#ifdef __cplusplus
}
#endif

#endif
