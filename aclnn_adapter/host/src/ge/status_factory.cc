// The parts of the graph engine that run when MindSpore's libraries are loaded; compiled with the old string ABI, which
// MindSpore's Ascend libraries use.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#define GE_API __attribute__((visibility("default")))

namespace ge {

// Static initialisers register error texts here. Its layout is the vendor's: a map first.
class GE_API StatusFactory {
 public:
  static StatusFactory *Instance();

 private:
  std::map<std::uint32_t, std::string> texts_;
  std::mutex mutex_;
  char room_[256] = {};  // for members of newer versions
};

StatusFactory *StatusFactory::Instance() {
  static auto *factory = new StatusFactory;
  return factory;
}

// A Status of zero is success.
GE_API std::uint32_t GEInitialize(const std::map<std::string, std::string> &) { return 0; }
GE_API std::uint32_t GEFinalize() { return 0; }

}  // namespace ge
