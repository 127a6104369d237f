// A mutex, a scoped lock and a condition variable that clang's thread-safety analysis understands.
#ifndef SPARSEAGG_HOST_BASE_MUTEX_H_
#define SPARSEAGG_HOST_BASE_MUTEX_H_

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace sparseagg {

// std::mutex with annotations.
//
//   mutable Mutex mu_;
//   int count_ ABSL_GUARDED_BY(mu_) = 0;
//   …
//   MutexLock lock(&mu_);
//   ++count_;
//
// Not absl::Mutex, for two reasons that both end when Abseil is built from source, at version 20230802 or later. The
// thread sanitizer does not see the locks of an Abseil that was built without it, as Debian's was, and reports races
// that are none. And absl::CondVar of Abseil 20220623 measures timeouts with the wall clock, which may be set back.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds a mutex from its construction to its destruction.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(*mu) { mu_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// std::shared_mutex with annotations: many readers, or one writer. A writer that waits goes before the readers that
// come after it; the readers of pthread_rwlock alone would starve it.
class ABSL_LOCKABLE SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    std::lock_guard<std::mutex> turn(gate_);
    mu_.lock();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  void LockShared() ABSL_SHARED_LOCK_FUNCTION() {
    std::lock_guard<std::mutex> turn(gate_);
    mu_.lock_shared();
  }
  void UnlockShared() ABSL_UNLOCK_FUNCTION() { mu_.unlock_shared(); }

 private:
  std::mutex gate_;  // held by whoever waits for mu_
  std::shared_mutex mu_;
};

// Holds a SharedMutex alone, from its construction to its destruction.
class ABSL_SCOPED_LOCKABLE WriterLock {
 public:
  explicit WriterLock(SharedMutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(*mu) { mu_.Lock(); }
  ~WriterLock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mu_;
};

// The same, together with other readers.
class ABSL_SCOPED_LOCKABLE ReaderLock {
 public:
  explicit ReaderLock(SharedMutex* mu) ABSL_SHARED_LOCK_FUNCTION(mu) : mu_(*mu) { mu_.LockShared(); }
  ~ReaderLock() ABSL_UNLOCK_FUNCTION() { mu_.UnlockShared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mu_;
};

// std::condition_variable for a Mutex. Waits may end without a signal: wait in a loop that checks the condition.
// Thread-safe.
class CondVar {
 public:
  void Signal() { changed_.notify_one(); }
  void SignalAll() { changed_.notify_all(); }

  // Releases `mu`, blocks until a signal, and locks `mu` again.
  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // The same, but blocks for at most `timeout` of the monotonic clock, and at most an hour: the end of the wait must
  // fit 64-bit nanoseconds.
  void WaitWithTimeout(Mutex* mu, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(1))));
    lock.release();
  }

 private:
  std::condition_variable changed_;
};

}  // namespace sparseagg

#endif  // SPARSEAGG_HOST_BASE_MUTEX_H_
