// SavedSignalActions: puts back, at its end, what signals did at its beginning. Some libraries take Ctrl-C for
// themselves when they are loaded: Debian's libfabric brings PSM, which has SIGINT and SIGTERM end the process with a
// backtrace.
#ifndef JAX_FABRIC_BASE_SAVED_SIGNAL_ACTIONS_H_
#define JAX_FABRIC_BASE_SAVED_SIGNAL_ACTIONS_H_

#include <signal.h>

#include <array>

namespace jax_fabric {

class SavedSignalActions {
 public:
  SavedSignalActions() {
    for (int number = 1; number < kSignals; ++number) known_[number] = sigaction(number, nullptr, &saved_[number]) == 0;
  }
  ~SavedSignalActions() {
    for (int number = 1; number < kSignals; ++number) {
      struct sigaction now;
      if (!known_[number] || sigaction(number, nullptr, &now) != 0) continue;
      if (now.sa_sigaction != saved_[number].sa_sigaction) sigaction(number, &saved_[number], nullptr);
    }
  }
  SavedSignalActions(const SavedSignalActions&) = delete;
  SavedSignalActions& operator=(const SavedSignalActions&) = delete;

 private:
  static constexpr int kSignals = 32;  // the classic ones

  std::array<struct sigaction, kSignals> saved_;
  std::array<bool, kSignals> known_{};
};

}  // namespace jax_fabric

#endif  // JAX_FABRIC_BASE_SAVED_SIGNAL_ACTIONS_H_
