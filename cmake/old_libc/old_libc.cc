// What a program links that shall run with a libc older than that of the machine where it was built (stubs.py):
// functions of newer libcs that libstdc++, the unwinder and the libraries of Debian ask for, by means of what libc 2.28
// has. They are hidden, so that other libraries of the process keep their own.
#include <link.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#pragma GCC visibility push(hidden)
extern "C" {

// 2.32: whether the process has one thread, so that counters need not be atomic. Theirs always are, then.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// 2.36.
unsigned arc4random() {
  unsigned value;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}

// 2.30.
pid_t gettid() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// 2.33: before, these were functions of libc's archive around others that take the version of the structure.
#ifdef __x86_64__
constexpr int kStatVersion = 1;
#else
constexpr int kStatVersion = 0;
#endif
#pragma GCC visibility push(default)
int __xstat(int version, const char* path, struct stat* found);
int __lxstat(int version, const char* path, struct stat* found);
int __fxstat(int version, int file, struct stat* found);
int __fxstatat(int version, int folder, const char* path, struct stat* found, int flags);
#pragma GCC visibility pop
int stat(const char* path, struct stat* found) { return __xstat(kStatVersion, path, found); }
int lstat(const char* path, struct stat* found) { return __lxstat(kStatVersion, path, found); }
int fstat(int file, struct stat* found) { return __fxstat(kStatVersion, file, found); }
int fstatat(int folder, const char* path, struct stat* found, int flags) {
  return __fxstatat(kStatVersion, folder, path, found, flags);
}
int stat64(const char* path, struct stat64* found) { return stat(path, reinterpret_cast<struct stat*>(found)); }
int lstat64(const char* path, struct stat64* found) { return lstat(path, reinterpret_cast<struct stat*>(found)); }
int fstat64(int file, struct stat64* found) { return fstat(file, reinterpret_cast<struct stat*>(found)); }

// 2.30: a wait until a time of any clock. Before, a condition variable has the clock of its creation, which is that of
// the day unless it was given another; waits on those have pthread_cond_timedwait.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  constexpr int64_t kSecond = 1'000'000'000;
  timespec now, today;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &today);
  const int64_t left = (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  const int64_t end = today.tv_sec * kSecond + today.tv_nsec + std::max<int64_t>(left, 0);
  const timespec until_today = {static_cast<time_t>(end / kSecond), static_cast<long>(end % kSecond)};
  return pthread_cond_timedwait(condition, mutex, clock == CLOCK_REALTIME ? until : &until_today);
}

// 2.35: the loaded object that an address is in, and its table for unwinding. GCC's unwinder asks for it at every
// frame.
int _dl_find_object(void* address, dl_find_object* found) {
  struct Search {
    uintptr_t address;
    dl_find_object* found;
  } search = {reinterpret_cast<uintptr_t>(address), found};
  const auto look = [](dl_phdr_info* object, size_t, void* data) {
    const Search& search = *static_cast<Search*>(data);
    uintptr_t begin = UINTPTR_MAX, end = 0, table = 0;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = object->dlpi_phdr[i];
      const uintptr_t at = object->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_GNU_EH_FRAME) table = at;
      if (segment.p_type != PT_LOAD) continue;
      begin = std::min(begin, at);
      end = std::max(end, at + segment.p_memsz);
    }
    if (search.address < begin || search.address >= end) return 0;
    *search.found = {};
    search.found->dlfo_map_start = reinterpret_cast<void*>(begin);
    search.found->dlfo_map_end = reinterpret_cast<void*>(end);
    search.found->dlfo_eh_frame = reinterpret_cast<void*>(table);
    return table == 0 ? -1 : 1;
  };
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

}  // extern "C"
#pragma GCC visibility pop
