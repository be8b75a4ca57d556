/* Counts the system calls that change files below one folder, and at a chosen one kills the process, tears the write,
 * or lets it fail; can log them all, so that what a disk would hold after any of them can be built again.
 *
 * Loaded with LD_PRELOAD. CRASH_ROOT is the folder; CRASH_CONTROL a file of one `struct control`, shared with the
 * test; CRASH_LOG, if set, is appended to. Calls that libc makes of itself are not seen; none of ours matter.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum action { COUNT, KILL, TEAR, FAIL };

/* `at`: the call, counted from 1, at which `action` happens; FAIL goes on from there. `calls`: which kinds fail. */
struct control { uint64_t count, at; uint32_t action, error, calls, logging; };

enum kind { OPEN = 'o', WRITE = 'w', TRUNCATE = 't', SYNC = 's', RENAME = 'r', UNLINK = 'u', MKDIR = 'm', RMDIR = 'd', NONE = 'x' };

struct record { uint32_t kind, path, other, data; uint64_t offset; }; /* lengths in bytes of what follows */

static struct control *control;
static char root[PATH_MAX];
static size_t root_size;
static int log_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("CRASH_ROOT"), *page = getenv("CRASH_CONTROL"), *log = getenv("CRASH_LOG");
    if (!folder || !page || !realpath(folder, root)) return;
    root_size = strlen(root);
    int fd = syscall(SYS_openat, AT_FDCWD, page, O_RDWR);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (log) log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (mapped != MAP_FAILED) control = mapped;
}

/* Whether a path lies below the folder; if so it becomes relative to it. */
static int ours(char *path) {
    if (strncmp(path, root, root_size) || path[root_size] != '/') return 0;
    memmove(path, path + root_size + 1, strlen(path + root_size));
    return 1;
}

static int path_of_fd(int fd, char *path) {
    char link[40];
    if (!control) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return ours(path);
}

static int path_at(int folder, const char *name, char *path) {
    if (!control || !name) return 0;
    if (name[0] == '/') {
        if (strlen(name) >= PATH_MAX) return 0;
        strcpy(path, name);
        return ours(path);
    }
    char base[PATH_MAX], link[40];
    if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, base, PATH_MAX - 1);
    if (size <= 0) return 0;
    base[size] = 0;
    if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
    return ours(path);
}

static void die(void) {
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    for (;;) pause();
}

/* Counts one call; what to do with it. Dies here when that is the order. */
static enum action counted(enum kind kind) {
    uint64_t now = ++control->count;
    if (!control->at || now < control->at) return COUNT;
    if (control->action == KILL && now == control->at) die();
    if (control->action == TEAR && now == control->at) { if (kind == WRITE) return TEAR; die(); }
    if (control->action == FAIL && (control->calls & (1u << (kind - 'a')))) { errno = (int)control->error; return FAIL; }
    return COUNT;
}

static void logged(enum kind kind, const char *path, const char *other, const void *data, size_t size, uint64_t offset) {
    if (log_fd < 0 || !control->logging) return;
    struct record r = {kind, strlen(path), other ? strlen(other) : 0, data ? size : 0, offset};
    struct iovec parts[] = {{&r, sizeof r}, {(void *)path, r.path}, {(void *)other, r.other}, {(void *)data, r.data}};
    if (syscall(SYS_writev, log_fd, parts, 4) < 0) die();
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, #name)

static ssize_t changed(int fd, const char *path, const void *data, size_t size, off_t offset, int positioned) {
    struct stat status;
    pthread_mutex_lock(&lock);
    enum action action = counted(WRITE);
    if (action == FAIL) { pthread_mutex_unlock(&lock); return -1; }
    off_t at = positioned ? offset : lseek(fd, 0, SEEK_CUR);
    if (!positioned && (fcntl(fd, F_GETFL) & O_APPEND) && !fstat(fd, &status)) at = status.st_size;
    if (action == TEAR) size /= 2;
    ssize_t done = positioned ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
    if (action == TEAR) die();
    int kept = errno;
    logged(done > 0 ? WRITE : NONE, path, NULL, data, done > 0 ? done : 0, at);
    errno = kept;
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    if (!path_of_fd(fd, path)) return syscall(SYS_write, fd, data, size);
    return changed(fd, path, data, size, 0, 0);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    char path[PATH_MAX];
    if (!path_of_fd(fd, path)) return syscall(SYS_pwrite64, fd, data, size, offset);
    return changed(fd, path, data, size, offset, 1);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) { return pwrite(fd, data, size, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (!path_of_fd(fd, path)) return syscall(SYS_writev, fd, parts, count);
    ssize_t whole = 0;
    for (int i = 0; i < count; i++) {
        if (!parts[i].iov_len) continue;
        ssize_t done = changed(fd, path, parts[i].iov_base, parts[i].iov_len, 0, 0);
        if (done < 0) return whole ? whole : -1;
        whole += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return whole;
}

/* The rest change one name or one file: count, do, log. */
#define ONE(kind, path, call, other, offset)                          \
    do {                                                              \
        pthread_mutex_lock(&lock);                                    \
        long done = -1;                                               \
        if (counted(kind) != FAIL) {                                  \
            done = (call);                                            \
            int kept = errno;                                         \
            logged(done < 0 ? NONE : kind, path, other, NULL, 0, offset); \
            errno = kept;                                             \
        }                                                             \
        pthread_mutex_unlock(&lock);                                  \
        return done;                                                  \
    } while (0)

int fsync(int fd) {
    char path[PATH_MAX];
    if (!path_of_fd(fd, path)) return syscall(SYS_fsync, fd);
    ONE(SYNC, path, syscall(SYS_fsync, fd), NULL, 0);
}

int fdatasync(int fd) {
    char path[PATH_MAX];
    if (!path_of_fd(fd, path)) return syscall(SYS_fdatasync, fd);
    ONE(SYNC, path, syscall(SYS_fdatasync, fd), NULL, 0);
}

int ftruncate(int fd, off_t size) {
    char path[PATH_MAX];
    if (!path_of_fd(fd, path)) return syscall(SYS_ftruncate, fd, size);
    ONE(TRUNCATE, path, syscall(SYS_ftruncate, fd, size), NULL, size);
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    char path[PATH_MAX], other[PATH_MAX];
    if (!path_at(from_folder, from, path) || !path_at(to_folder, to, other))
        return syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    ONE(RENAME, path, syscall(SYS_renameat2, from_folder, from, to_folder, to, flags), other, 0);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    return renameat2(from_folder, from, to_folder, to, 0);
}

int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    if (!path_at(folder, name, path)) return syscall(SYS_unlinkat, folder, name, flags);
    ONE(flags & AT_REMOVEDIR ? RMDIR : UNLINK, path, syscall(SYS_unlinkat, folder, name, flags), NULL, 0);
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int remove(const char *name) {
    struct stat status;
    if (lstat(name, &status)) return -1;
    return unlinkat(AT_FDCWD, name, S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0);
}

int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    if (!path_at(folder, name, path)) return syscall(SYS_mkdirat, folder, name, mode);
    ONE(MKDIR, path, syscall(SYS_mkdirat, folder, name, mode), NULL, 0);
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* Opening counts when it makes or empties a file, or, for a failing disk, when it is for writing. */
static int opened(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    int there = 0, writing = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);
    if (!writing || !path_at(folder, name, path)) return syscall(SYS_openat, folder, name, flags, mode);
    there = !fstatat(folder, name, &status, 0);
    int refused = control->action == FAIL && control->error == EROFS;
    if (there && !(flags & O_TRUNC) && !refused) return syscall(SYS_openat, folder, name, flags, mode);
    ONE(OPEN, path, syscall(SYS_openat, folder, name, flags, mode), NULL, flags & O_TRUNC ? 1 : 0);
}

#define MODE(flags, mode)                          \
    mode_t mode = 0;                               \
    if ((flags) & (O_CREAT | O_TMPFILE)) {         \
        va_list more;                              \
        va_start(more, flags);                     \
        mode = va_arg(more, mode_t);               \
        va_end(more);                              \
    }

int open(const char *name, int flags, ...) { MODE(flags, mode) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags, mode) return opened(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE(flags, mode) return opened(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE(flags, mode) return opened(folder, name, flags, mode); }

/* A C++ file stream opens so; what it writes goes through write. */
FILE *fopen(const char *name, const char *mode) {
    REAL(fopen);
    char path[PATH_MAX];
    if (mode[0] != 'w' || !path_at(AT_FDCWD, name, path)) return real(name, mode);
    pthread_mutex_lock(&lock);
    FILE *file = counted(OPEN) == FAIL ? NULL : real(name, mode);
    logged(file ? OPEN : NONE, path, NULL, NULL, 0, 1);
    pthread_mutex_unlock(&lock);
    return file;
}

FILE *fopen64(const char *name, const char *mode) { return fopen(name, mode); }
