/* Lets the n-th system call of a kind fail, on files below some folders: to be loaded with LD_PRELOAD.
 *
 * The calls of Python, Arrow, safetensors and PyTorch all go through the C library, so that all of them are met. Nothing
 * fails before torture_arm is called, and then one call alone: what the process does afterwards is what it does about it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, STAT, READ, WRITE, FSYNC, RENAME, CLOSE, UNLINK, MKDIR, LIST, LOCK, MAP, KINDS };
enum { SHORT = -1, FILES = 65536, ROOTS = 4 };

static char roots[ROOTS][4096];
static int num_roots;
static atomic_char tracked[FILES];
static atomic_long counts[KINDS];
static atomic_int armed;
static int kind_to_fail, error_to_raise;
static long call_to_fail;

/* Roots end with a NUL each; error -1 = half of what was asked for; call 0 = count alone. */
void torture_arm(const char *folders, int number, int kind, long call, int error)
{
    num_roots = number < ROOTS ? number : ROOTS;
    for (int i = 0; i < num_roots; i++) {
        strncpy(roots[i], folders, sizeof roots[i] - 1);
        folders += strlen(folders) + 1;
    }
    memset((void *)tracked, 0, sizeof tracked);
    for (int i = 0; i < KINDS; i++)
        counts[i] = 0;
    kind_to_fail = kind;
    call_to_fail = call;
    error_to_raise = error;
    armed = 1;
}

void torture_disarm(void) { armed = 0; }

long torture_count(int kind) { return counts[kind]; }

/* Relative paths are below the working directory, which is one of the folders. */
static int concerns(int folder, const char *path)
{
    if (!armed || path == NULL)
        return 0;
    if (path[0] != '/')
        return folder == AT_FDCWD || (folder >= 0 && folder < FILES && tracked[folder]);
    for (int i = 0; i < num_roots; i++)
        if (strncmp(path, roots[i], strlen(roots[i])) == 0)
            return 1;
    return 0;
}

static int is_open(int file) { return armed && file >= 0 && file < FILES && tracked[file]; }

static int track(int file, int is_ours)
{
    if (file >= 0 && file < FILES)
        tracked[file] = is_ours;
    return file;
}

/* Whether this call is the one; a short one is only for those that can be short. */
static int strikes(int kind)
{
    return atomic_fetch_add(&counts[kind], 1) + 1 == call_to_fail && kind == kind_to_fail;
}

static int fails(int kind)
{
    if (!strikes(kind) || error_to_raise == SHORT)
        return 0;
    errno = error_to_raise;
    return 1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (real == NULL) \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPENING(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(int, #name, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        int is_ours = concerns(AT_FDCWD, path); \
        return is_ours && fails(OPEN) ? -1 : track(real(path, flags, mode), is_ours); \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name) \
    int name(int folder, const char *path, int flags, ...) \
    { \
        REAL(int, #name, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        int is_ours = concerns(folder, path); \
        return is_ours && fails(OPEN) ? -1 : track(real(folder, path, flags, mode), is_ours); \
    }
OPENING_AT(openat)
OPENING_AT(openat64)

#define OPENING_STREAM(name) \
    FILE *name(const char *path, const char *mode) \
    { \
        REAL(FILE *, #name, const char *, const char *); \
        return concerns(AT_FDCWD, path) && fails(OPEN) ? NULL : real(path, mode); \
    }
OPENING_STREAM(fopen)
OPENING_STREAM(fopen64)

#define LOOKING(name, status) \
    int name(const char *path, struct status *found) \
    { \
        REAL(int, #name, const char *, struct status *); \
        return concerns(AT_FDCWD, path) && fails(STAT) ? -1 : real(path, found); \
    }
LOOKING(stat, stat)
LOOKING(stat64, stat64)
LOOKING(lstat, stat)
LOOKING(lstat64, stat64)

#define LOOKING_AT(name, status) \
    int name(int folder, const char *path, struct status *found, int flags) \
    { \
        REAL(int, #name, int, const char *, struct status *, int); \
        return concerns(folder, path) && fails(STAT) ? -1 : real(folder, path, found, flags); \
    }
LOOKING_AT(fstatat, stat)
LOOKING_AT(fstatat64, stat64)

#define LOOKING_OPEN(name, status) \
    int name(int file, struct status *found) \
    { \
        REAL(int, #name, int, struct status *); \
        return is_open(file) && fails(STAT) ? -1 : real(file, found); \
    }
LOOKING_OPEN(fstat, stat)
LOOKING_OPEN(fstat64, stat64)

/* What programs call that were built with an older C library. */
#define LOOKING_OLD(name, status) \
    int name(int version, const char *path, struct status *found) \
    { \
        REAL(int, #name, int, const char *, struct status *); \
        return concerns(AT_FDCWD, path) && fails(STAT) ? -1 : real(version, path, found); \
    }
LOOKING_OLD(__xstat, stat)
LOOKING_OLD(__xstat64, stat64)
LOOKING_OLD(__lxstat, stat)
LOOKING_OLD(__lxstat64, stat64)

#define LOOKING_OLD_OPEN(name, status) \
    int name(int version, int file, struct status *found) \
    { \
        REAL(int, #name, int, int, struct status *); \
        return is_open(file) && fails(STAT) ? -1 : real(version, file, found); \
    }
LOOKING_OLD_OPEN(__fxstat, stat)
LOOKING_OLD_OPEN(__fxstat64, stat64)

int statx(int folder, const char *restrict path, int flags, unsigned int mask, struct statx *restrict found)
{
    REAL(int, "statx", int, const char *, int, unsigned int, struct statx *);
    /* Rust asks without a path whether the kernel has this call, once it failed; the header says that there is one. */
    const char *volatile asked = path;
    const char *name = asked;
    int is_ours = name != NULL && name[0] == 0 ? is_open(folder) : concerns(folder, name);
    return is_ours && fails(STAT) ? -1 : real(folder, path, flags, mask, found);
}

/* One that moves bytes: it fails, or moves half of them. */
#define MOVING(kind, name, buffer) \
    ssize_t name(int file, buffer data, size_t size) \
    { \
        REAL(ssize_t, #name, int, buffer, size_t); \
        if (is_open(file) && strikes(kind)) { \
            if (error_to_raise != SHORT) { \
                errno = error_to_raise; \
                return -1; \
            } \
            size = size > 1 ? size / 2 : size; \
        } \
        return real(file, data, size); \
    }
MOVING(READ, read, void *)
MOVING(WRITE, write, const void *)

#define MOVING_AT(kind, name, buffer, offset) \
    ssize_t name(int file, buffer data, size_t size, offset place) \
    { \
        REAL(ssize_t, #name, int, buffer, size_t, offset); \
        if (is_open(file) && strikes(kind)) { \
            if (error_to_raise != SHORT) { \
                errno = error_to_raise; \
                return -1; \
            } \
            size = size > 1 ? size / 2 : size; \
        } \
        return real(file, data, size, place); \
    }
MOVING_AT(READ, pread, void *, off_t)
MOVING_AT(READ, pread64, void *, off64_t)
MOVING_AT(WRITE, pwrite, const void *, off_t)
MOVING_AT(WRITE, pwrite64, const void *, off64_t)

#define MOVING_MANY(kind, name) \
    ssize_t name(int file, const struct iovec *parts, int number) \
    { \
        REAL(ssize_t, #name, int, const struct iovec *, int); \
        return is_open(file) && fails(kind) ? -1 : real(file, parts, number); \
    }
MOVING_MANY(READ, readv)
MOVING_MANY(WRITE, writev)

#define ON_OPEN(kind, name) \
    int name(int file) \
    { \
        REAL(int, #name, int); \
        return is_open(file) && fails(kind) ? -1 : real(file); \
    }
ON_OPEN(FSYNC, fsync)
ON_OPEN(FSYNC, fdatasync)

/* Linux closes the file whatever it answers. */
int close(int file)
{
    REAL(int, "close", int);
    int fault = is_open(file) && fails(CLOSE) ? errno : 0;
    track(file, 0);
    int done = real(file);
    if (fault) {
        errno = fault;
        return -1;
    }
    return done;
}

int flock(int file, int operation)
{
    REAL(int, "flock", int, int);
    return is_open(file) && fails(LOCK) ? -1 : real(file, operation);
}

#define TRUNCATING(name, offset) \
    int name(int file, offset size) \
    { \
        REAL(int, #name, int, offset); \
        return is_open(file) && fails(WRITE) ? -1 : real(file, size); \
    }
TRUNCATING(ftruncate, off_t)
TRUNCATING(ftruncate64, off64_t)

int rename(const char *old, const char *new)
{
    REAL(int, "rename", const char *, const char *);
    return concerns(AT_FDCWD, new) && fails(RENAME) ? -1 : real(old, new);
}

int renameat(int from, const char *old, int to, const char *new)
{
    REAL(int, "renameat", int, const char *, int, const char *);
    return concerns(to, new) && fails(RENAME) ? -1 : real(from, old, to, new);
}

#define ON_PATH(kind, name) \
    int name(const char *path) \
    { \
        REAL(int, #name, const char *); \
        return concerns(AT_FDCWD, path) && fails(kind) ? -1 : real(path); \
    }
ON_PATH(UNLINK, unlink)
ON_PATH(UNLINK, rmdir)

int unlinkat(int folder, const char *path, int flags)
{
    REAL(int, "unlinkat", int, const char *, int);
    return concerns(folder, path) && fails(UNLINK) ? -1 : real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, "mkdir", const char *, mode_t);
    return concerns(AT_FDCWD, path) && fails(MKDIR) ? -1 : real(path, mode);
}

DIR *opendir(const char *path)
{
    REAL(DIR *, "opendir", const char *);
    return concerns(AT_FDCWD, path) && fails(LIST) ? NULL : real(path);
}

#define MAPPING(name, offset) \
    void *name(void *address, size_t size, int rights, int flags, int file, offset place) \
    { \
        REAL(void *, #name, void *, size_t, int, int, int, offset); \
        return is_open(file) && fails(MAP) ? MAP_FAILED : real(address, size, rights, flags, file, place); \
    }
MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)
