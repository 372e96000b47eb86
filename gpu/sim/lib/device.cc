// Devices and contexts.
#include "sim.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <string>
#include <unistd.h>

namespace sim {

Machine machine;
std::vector<Device *> &devices = *new std::vector<Device *>;
std::mutex &tables = *new std::mutex;
thread_local Device *current;

namespace {

std::atomic<bool> initialized;
const char *const uuidFormat = "GPU-c0510000-0000-4000-8000-%012x";

// visible is the cards that CUDA_VISIBLE_DEVICES leaves, in its order: numbers or UUIDs, up to the first that
// is neither.
std::vector<int> visible(int cards) {
  std::vector<int> v;
  const char *e = getenv("CUDA_VISIBLE_DEVICES");
  if (!e) {
    for (int i = 0; i < cards; i++) v.push_back(i);
    return v;
  }
  std::string s = e;
  for (size_t at = 0; at < s.size();) {
    size_t comma = std::min(s.find(',', at), s.size());
    std::string name = s.substr(at, comma - at);
    at = comma + 1;
    int card = -1;
    for (int i = 0; i < cards; i++) {
      char uuid[64];
      snprintf(uuid, sizeof uuid, uuidFormat, i);
      if (name == std::to_string(i) || name == uuid) card = i;
    }
    if (card < 0) break;
    v.push_back(card);
  }
  return v;
}

Device *device(CUdevice v) { return initialized && v >= 0 && v < (int)devices.size() ? devices[v] : nullptr; }

// about is how calls about a device, not a context, begin.
CUresult about(CUdevice v, Device **d) {
  if (!initialized) return notInitialized;
  *d = device(v);
  if (!*d) return invalidDevice;
  return box->device[(*d)->card].lost;
}
#define ABOUT(d, v) \
  Device *d;        \
  if (CUresult r_ = about(v, &d)) return r_;

bool canReach(int from, int to) { return from != to && !box->device[from].noPeer && !box->device[to].noPeer; }

} // namespace

Device *deviceOfCard(int card) {
  for (Device *d : devices)
    if (d->card == card) return d;
  return nullptr;
}

int health(Device *d) {
  BoxDevice &b = box->device[d->card];
  int now = b.lost;
  if (!now && b.fault && (!b.faultPid || b.faultPid == (uint32_t)getpid())) now = b.fault;
  int none = 0;
  if (now) d->fault.compare_exchange_strong(none, now);
  return d->fault;
}

void fail(Device *d, int result, const char *why) {
  int none = 0;
  if (d->fault.compare_exchange_strong(none, result)) fprintf(stderr, "cusim: card %d: %s: context ends with %d\n", d->card, why, result);
}

CUresult enter(Device **d) {
  if (!initialized) return notInitialized;
  *d = current;
  if (!current) return invalidContext;
  if (!current->retained) return contextDestroyed;
  return health(current);
}

} // namespace sim

using namespace sim;

API cuInit(unsigned flags) {
  if (flags) return invalid;
  Lock l(tables);
  if (initialized) return success;
  auto number = [](const char *name, long fallback) {
    const char *e = getenv(name);
    return e && *e ? atol(e) : fallback;
  };
  machine.devices = number("CUSIM_DEVICES", 8);
  machine.memory = number("CUSIM_MEMORY", 96l << 30);
  machine.version = number("CUSIM_VERSION", 13000);
  int arch = number("CUSIM_ARCH", 120);
  machine.major = arch / 10;
  machine.minor = arch % 10;
  if (machine.devices < 0 || machine.devices > maxDevices) return invalid;
  openBox();
  for (int card : visible(machine.devices)) {
    devices.push_back(new Device);
    devices.back()->card = card;
  }
  if (devices.empty()) return noDevice;
  initialized = true;
  return success;
}

API cuDriverGetVersion(int *version) {
  const char *e = getenv("CUSIM_VERSION");
  *version = e && *e ? atoi(e) : machine.version;
  return success;
}

API cuDeviceGetCount(int *count) {
  if (!initialized) return notInitialized;
  *count = devices.size();
  return success;
}

API cuDeviceGet(CUdevice *v, int ordinal) {
  if (!initialized) return notInitialized;
  if (!device(ordinal)) return invalidDevice;
  *v = ordinal;
  return success;
}

API cuDeviceGetName(char *name, int len, CUdevice v) {
  ABOUT(d, v)
  (void)d;
  snprintf(name, len, machine.major == 12 ? "NVIDIA RTX PRO 6000 Blackwell Server Edition (simulated)" : "NVIDIA sm_%d%d (simulated)", machine.major, machine.minor);
  return success;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice v) {
  ABOUT(d, v)
  const unsigned char bytes[16] = {0xc0, 0x51, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, (unsigned char)d->card};
  memcpy(uuid, bytes, 16);
  return success;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice v) {
  ABOUT(d, v)
  (void)d;
  *bytes = machine.memory;
  return success;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice v) {
  ABOUT(d, v)
  bool pro6000 = machine.major == 12;
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = pro6000 ? 188 : 132; break;
  case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = 0x10 + d->card; break;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = pro6000 ? 128 << 20 : 50 << 20; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = machine.major; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = machine.minor; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = (pro6000 ? 100 : 228) << 10; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = (pro6000 ? 99 : 227) << 10; break;
  case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
  default: *value = 0;
  }
  return success;
}

API cuDeviceGetPCIBusId(char *id, int len, CUdevice v) {
  ABOUT(d, v)
  snprintf(id, len, "0000:%02X:00.0", 0x10 + d->card);
  return success;
}

API cuDeviceCanAccessPeer(int *can, CUdevice v, CUdevice peer) {
  ABOUT(d, v)
  ABOUT(p, peer)
  *can = canReach(d->card, p->card);
  return success;
}

// As on the box that is simulated: two sockets, two switches each, two cards a switch.
API cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  ABOUT(f, from)
  ABOUT(t, to)
  if (f == t) return invalidDevice;
  switch (attribute) {
  case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = f->card / 2 == t->card / 2 ? 0 : f->card / 4 == t->card / 4 ? 1 : 2; break;
  case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: *value = canReach(f->card, t->card); break;
  case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = 0; break; // PCIe
  default: return invalid;
  }
  return success;
}

API cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice v) {
  ABOUT(d, v)
  Lock l(tables);
  d->retained++;
  *c = (CUcontext)d;
  return success;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice v) {
  ABOUT(d, v)
  if (!d->retained) return invalidContext;
  if (d->retained == 1) drainAll(d);
  Lock l(tables);
  if (--d->retained) return success;
  for (Stream *s : d->streams) s->closed = true;
  d->streams.clear();
  d->standard = nullptr;
  d->peers = 0;
  freeAll(d);
  return success;
}

API cuCtxGetCurrent(CUcontext *c) {
  if (!initialized) return notInitialized;
  *c = (CUcontext)current;
  return success;
}

API cuCtxSetCurrent(CUcontext c) {
  if (!initialized) return notInitialized;
  if (c && std::find(devices.begin(), devices.end(), (Device *)c) == devices.end()) return invalidContext;
  current = (Device *)c;
  return success;
}

API cuCtxGetDevice(CUdevice *v) {
  ENTER(d)
  *v = std::find(devices.begin(), devices.end(), d) - devices.begin();
  return success;
}

API cuCtxSynchronize() {
  ENTER(d)
  return drainAll(d);
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  ENTER(d)
  if (flags || std::find(devices.begin(), devices.end(), (Device *)peer) == devices.end()) return invalid;
  Device *p = (Device *)peer;
  if (!p->retained) return contextDestroyed;
  if (p == d) return invalidDevice;
  if (!canReach(d->card, p->card)) return peerUnsupported;
  uint32_t bit = 1u << p->card;
  return d->peers.fetch_or(bit) & bit ? peerEnabled : success;
}
