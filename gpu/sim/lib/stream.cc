// Streams, events, copies, words that streams wait for, and graphs. Each stream is a thread that does one
// thing after another; nothing orders streams but events.
#include "sim.h"

#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

extern "C" __attribute__((weak)) void __asan_poison_memory_region(const volatile void *, size_t);

namespace sim {

namespace {

using Clock = std::chrono::steady_clock;

auto &streams = *new std::set<Stream *>;

// idle waits a little; it is all the rest that the threads of one process get when machines are small.
void idle(int &steps) {
  if (++steps < 64) sched_yield();
  else usleep(steps < 1024 ? 20 : 200);
}

void work(Stream *s) {
  for (;;) {
    Op op;
    {
      std::unique_lock<std::mutex> l(s->m);
      s->changed.wait(l, [&] { return s->closed || !s->queue.empty(); });
      if (s->queue.empty()) break;
      op = std::move(s->queue.front());
      s->queue.pop_front();
      s->busy = true;
    }
    BoxDevice &b = box->device[s->d->card];
    for (int steps = 0; b.hang && !health(s->d); steps++) usleep(200);
    if (b.delay) usleep(b.delay);
    if (!health(s->d)) op.run();
    op = {};
    std::lock_guard<std::mutex> l(s->m);
    s->busy = false;
    s->changed.notify_all();
  }
  delete s;
}

Stream *create(Device *d) {
  Stream *s = new Stream;
  s->d = d;
  streams.insert(s);
  d->streams.insert(s);
  std::thread(work, s).detach();
  return s;
}

// Touching memory that is not there, in a kernel or a copy, is caught and ends the context. Sanitizers want
// such signals for themselves.
thread_local sigjmp_buf *landing;
struct sigaction earlier[2];

void caught(int sig, siginfo_t *info, void *context) {
  if (landing) siglongjmp(*landing, 1);
  struct sigaction &old = earlier[sig == SIGBUS];
  if (old.sa_flags & SA_SIGINFO) return old.sa_sigaction(sig, info, context);
  if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(sig);
  signal(sig, SIG_DFL);
  raise(sig);
}

void catchFaults() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (__asan_poison_memory_region) return;
    struct sigaction a = {};
    a.sa_sigaction = caught;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &a, &earlier[0]);
    sigaction(SIGBUS, &a, &earlier[1]);
  });
}

} // namespace

void guarded(Device *d, const char *what, const std::function<void()> &f) {
  catchFaults();
  sigjmp_buf here;
  if (sigsetjmp(here, 1)) {
    landing = nullptr;
    fail(d, illegalAddress, what);
    return;
  }
  landing = &here;
  f();
  landing = nullptr;
}

bool pause(Device *d, int &steps) {
  idle(steps);
  return !health(d);
}

Stream *stream(Device *d, CUstream h) {
  Lock l(tables);
  if (!h) {
    if (!d->standard) d->standard = create(d);
    return d->standard;
  }
  Stream *s = (Stream *)h;
  return streams.count(s) && s->d == d ? s : nullptr;
}

CUresult put(Stream *s, Op op) {
  std::lock_guard<std::mutex> l(s->m);
  if (s->capture) {
    if (s->capture->broken) return captureInvalid;
    s->capture->ops.push_back(std::move(op));
    s->capture->length[s]++;
    return success;
  }
  s->queue.push_back(std::move(op));
  s->changed.notify_all();
  return success;
}

CUresult ready(Stream *s) {
  std::lock_guard<std::mutex> l(s->m);
  if (!s->capture) return success;
  s->capture->broken = true;
  return captureForbidden;
}

CUresult drain(Stream *s) {
  Device *d = s->d;
  std::unique_lock<std::mutex> l(s->m);
  while (!s->queue.empty() || s->busy) {
    s->changed.wait_for(l, std::chrono::milliseconds(2));
    if (int r = health(d)) return r;
  }
  return health(d);
}

CUresult finish(Stream *s) {
  std::unique_lock<std::mutex> l(s->m);
  s->changed.wait(l, [&] { return s->queue.empty() && !s->busy; });
  return health(s->d);
}

CUresult drainAll(Device *d) {
  std::vector<Stream *> all;
  {
    Lock l(tables);
    all.assign(d->streams.begin(), d->streams.end());
  }
  for (Stream *s : all)
    if (CUresult r = drain(s)) return r;
  return health(d);
}

} // namespace sim

using namespace sim;

#define STREAM(s, d, h)         \
  Stream *s = stream(d, h);     \
  if (!s) return invalidHandle;

API cuStreamCreateWithPriority(CUstream *h, unsigned, int) {
  ENTER(d)
  Lock l(tables);
  *h = (CUstream)create(d);
  return success;
}

API cuStreamCreate(CUstream *h, unsigned flags) { return cuStreamCreateWithPriority(h, flags, 0); }

// Work that is queued is still done.
API cuStreamDestroy_v2(CUstream h) {
  ENTER(d)
  STREAM(s, d, h)
  if (!h) return invalidHandle;
  {
    Lock l(tables);
    streams.erase(s);
    d->streams.erase(s);
  }
  std::lock_guard<std::mutex> l(s->m);
  s->closed = true;
  s->changed.notify_all();
  return success;
}

API cuStreamSynchronize(CUstream h) {
  ENTER(d)
  STREAM(s, d, h)
  if (CUresult r = ready(s)) return r;
  return drain(s);
}

API cuStreamQuery(CUstream h) {
  ENTER(d)
  STREAM(s, d, h)
  if (CUresult r = ready(s)) return r;
  std::lock_guard<std::mutex> l(s->m);
  return s->queue.empty() && !s->busy ? success : notReady;
}

// ---- events

namespace {

// Marks counts records of an event, and how many of them happened; shared between processes if it has a file.
struct Marks {
  std::atomic<uint64_t> recorded, happened;
};

struct EventState {
  unsigned flags = 0;
  Marks own{}, *marks = &own;
  int fd = -1;
  uint64_t id = 0;
  std::atomic<int64_t> time{0}; // of what happened last, in ns
  // What was recorded while capturing is a place in a graph, not a time.
  std::weak_ptr<Capture> capture;
  bool captured = false;
  Stream *in = nullptr;
  size_t length = 0;
  ~EventState() {
    if (marks != &own) munmap(marks, sizeof *marks);
    if (fd >= 0) close(fd);
  }
};

struct Event {
  std::shared_ptr<EventState> state;
};

auto &events = *new std::set<Event *>;

std::shared_ptr<EventState> event(CUevent h) {
  Lock l(tables);
  auto i = events.find((Event *)h);
  return i == events.end() ? nullptr : (*i)->state;
}

bool share(EventState &e) {
  void *p = mmap(nullptr, sizeof(Marks), PROT_READ | PROT_WRITE, MAP_SHARED, e.fd, 0);
  struct stat st;
  if (p == MAP_FAILED || fstat(e.fd, &st)) return false;
  e.marks = (Marks *)p;
  e.id = st.st_ino;
  return true;
}

CUevent handle(std::shared_ptr<EventState> e) {
  Lock l(tables);
  Event *h = new Event{std::move(e)};
  events.insert(h);
  return (CUevent)h;
}

struct EventName {
  char kind;
  int pid, fd;
  uint64_t id;
};

} // namespace

#define EVENT(e, h)       \
  auto e = event(h);      \
  if (!e) return invalidHandle;

API cuEventCreate(CUevent *h, unsigned flags) {
  ENTER(d)
  (void)d;
  if (flags & ~7u || (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING))) return invalid;
  auto e = std::make_shared<EventState>();
  e->flags = flags;
  if (flags & CU_EVENT_INTERPROCESS) {
    e->fd = memfd_create("cusim-event", MFD_CLOEXEC);
    if (e->fd < 0 || ftruncate(e->fd, sizeof(Marks)) || !share(*e)) return operatingSystem;
  }
  *h = handle(e);
  return success;
}

API cuEventDestroy_v2(CUevent h) {
  ENTER(d)
  (void)d;
  EVENT(e, h)
  Lock l(tables);
  events.erase((Event *)h);
  delete (Event *)h;
  return success;
}

API cuEventRecord(CUevent h, CUstream sh) {
  ENTER(d)
  EVENT(e, h)
  STREAM(s, d, sh)
  {
    std::lock_guard<std::mutex> l(s->m);
    if (s->capture) {
      if (s->capture->broken) return captureInvalid;
      e->captured = true;
      e->capture = s->capture;
      e->in = s;
      e->length = s->capture->length[s];
      return success;
    }
  }
  e->captured = false;
  uint64_t n = ++e->marks->recorded;
  return put(s, {(void *)cuEventRecord, [e, n] {
                   e->time = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
                   uint64_t now = e->marks->happened;
                   while (now < n && !e->marks->happened.compare_exchange_weak(now, n)) {}
                 }});
}

API cuEventQuery(CUevent h) {
  ENTER(d)
  (void)d;
  EVENT(e, h)
  if (e->captured) return capturedEvent;
  return e->marks->happened >= e->marks->recorded ? success : notReady;
}

API cuEventSynchronize(CUevent h) {
  ENTER(d)
  EVENT(e, h)
  if (e->captured) return capturedEvent;
  uint64_t n = e->marks->recorded;
  for (int steps = 0; e->marks->happened < n;)
    if (!pause(d, steps)) return health(d);
  return success;
}

API cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
  ENTER(d)
  (void)d;
  EVENT(a, from)
  EVENT(b, to)
  if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING || !a->marks->recorded || !b->marks->recorded) return invalidHandle;
  if (a->captured || b->captured) return capturedEvent;
  for (auto &e : {a, b})
    if (e->marks->happened < e->marks->recorded) return notReady;
  *ms = (b->time - a->time) / 1e6f;
  return success;
}

API cuStreamWaitEvent(CUstream sh, CUevent h, unsigned) {
  ENTER(d)
  STREAM(s, d, sh)
  EVENT(e, h)
  if (e->captured) {
    auto c = e->capture.lock();
    if (!c || c->broken) return captureInvalid;
    std::lock_guard<std::mutex> l(s->m);
    if (s->capture && s->capture != c) return captureIsolation;
    s->capture = c;
    c->length[s]; // it takes part now
    if (e->in != s) c->joined[e->in] = std::max(c->joined[e->in], e->length + 1);
    return success;
  }
  {
    std::lock_guard<std::mutex> l(s->m);
    if (s->capture) {
      s->capture->broken = true;
      return captureIsolation;
    }
  }
  uint64_t n = e->marks->recorded;
  return put(s, {(void *)cuStreamWaitEvent, [d, e, n] {
                   for (int steps = 0; e->marks->happened < n && pause(d, steps);) {}
                 }});
}

API cuIpcGetEventHandle(CUipcEventHandle *out, CUevent h) {
  ENTER(d)
  (void)d;
  EVENT(e, h)
  if (!(e->flags & CU_EVENT_INTERPROCESS)) return invalid;
  EventName n{'E', getpid(), e->fd, e->id};
  memset(out, 0, sizeof *out);
  memcpy(out, &n, sizeof n);
  return success;
}

API cuIpcOpenEventHandle(CUevent *h, CUipcEventHandle in) {
  ENTER(d)
  (void)d;
  EventName n;
  memcpy(&n, &in, sizeof n);
  if (n.kind != 'E') return invalid;
  if (n.pid == getpid()) return invalidContext;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", n.pid, n.fd);
  auto e = std::make_shared<EventState>();
  e->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  e->fd = open(path, O_RDWR | O_CLOEXEC);
  if (e->fd < 0 || !share(*e) || e->id != n.id) return invalid;
  *h = handle(e);
  return success;
}

// ---- copies

namespace {

int cardOf(uintptr_t p) {
  Lock l(tables);
  Range *r = find(p);
  return r && r->memory ? r->memory->card : -1;
}

bool known(uintptr_t p) {
  Lock l(tables);
  return find(p);
}

// A copy that d does. Host says which side is host memory for certain; other addresses that are nobody's are
// taken for host memory too, as the driver takes them.
enum Host { neither, source, target };
void copy(Device *d, uintptr_t to, uintptr_t from, size_t n, Host host) {
  int a = host == source ? -1 : cardOf(from), b = host == target ? -1 : cardOf(to);
  auto may = [&](uintptr_t p, int card, Touch how) {
    if (card < 0) return true;
    if (reach(d, p, n, how)) return true;
    // Between allocations that do not reach each other the driver goes by way of the host.
    Device *at = deviceOfCard(card);
    Lock l(tables);
    Range *r = find(p);
    return at && at != d && r->kind == Range::allocated && n <= r->base + r->bytes - p;
  };
  if ((host != source && !may(from, a, reads)) || (host != target && !may(to, b, writes))) return fail(d, illegalAddress, "a copy reaches beyond its memory");
  uint32_t wrong = 0;
  bool direct = a >= 0 && b >= 0 && a != b && reach(d, from, n, reads) && reach(d, to, n, writes);
  if (direct) {
    wrong = box->pair[a][b];
    box->copied[a][b] += n;
    if (wrong & dropWrites && d->card == a) return;
  }
  guarded(d, "a copy touched memory that is not there", [&] { memmove((void *)to, (void *)from, n); });
  if ((wrong & corruptWrites && d->card == a) || (wrong & corruptReads && d->card == b)) ((volatile char *)to)[n / 2] ^= 0x40;
}

} // namespace

// The caller's memory is the caller's again when these return, so they return only then.
API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) {
  ENTER(d)
  if (!known(to)) return invalid;
  Stream *s = stream(d, nullptr);
  if (CUresult r = put(s, {(void *)cuMemcpyHtoD_v2, [=] { copy(d, to, (uintptr_t)from, n, source); }})) return r;
  return finish(s);
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) {
  ENTER(d)
  if (!known(from)) return invalid;
  Stream *s = stream(d, nullptr);
  if (CUresult r = put(s, {(void *)cuMemcpyDtoH_v2, [=] { copy(d, (uintptr_t)to, from, n, target); }})) return r;
  return finish(s);
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream h) {
  ENTER(d)
  STREAM(s, d, h)
  return put(s, {(void *)cuMemcpyAsync, [=] { copy(d, to, from, n, neither); }});
}

API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) {
  ENTER(d)
  if (!known(to) || !known(from)) return invalid;
  Stream *s = stream(d, nullptr);
  if (CUresult r = put(s, {(void *)cuMemcpyDtoD_v2, [=] { copy(d, to, from, n, neither); }})) return r;
  return drain(s);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream h) {
  ENTER(d)
  STREAM(s, d, h)
  if (!known(to)) return invalid;
  return put(s, {(void *)cuMemcpyAsync, [=] { copy(d, to, (uintptr_t)from, n, source); }});
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream h) {
  ENTER(d)
  STREAM(s, d, h)
  if (!known(from)) return invalid;
  return put(s, {(void *)cuMemcpyAsync, [=] { copy(d, (uintptr_t)to, from, n, target); }});
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream h) {
  if (!known(to) || !known(from)) return invalid;
  return cuMemcpyAsync(to, from, n, h);
}

API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext toContext, CUdeviceptr from, CUcontext fromContext, size_t n, CUstream h) {
  ENTER(d)
  STREAM(s, d, h)
  Device *a = (Device *)fromContext, *b = (Device *)toContext;
  for (Device *x : {a, b})
    if (std::find(devices.begin(), devices.end(), x) == devices.end() || !x->retained) return invalidContext;
  if (cardOf(from) != a->card || cardOf(to) != b->card) return invalid;
  return put(s, {(void *)cuMemcpyPeerAsync, [=] { copy(d, to, from, n, neither); }});
}

namespace {

template <class T> CUresult fill(CUdeviceptr to, T value, size_t count, CUstream h, const void *code) {
  ENTER(d)
  STREAM(s, d, h)
  if (to % sizeof(T) || !known(to)) return invalid;
  return put(s, {code, [=] {
                   if (!reach(d, to, count * sizeof(T), writes)) return fail(d, illegalAddress, "a fill reaches beyond its memory");
                   guarded(d, "a fill touched memory that is not there", [&] {
                     for (size_t i = 0; i < count; i++) ((T *)to)[i] = value;
                   });
                 }});
}

} // namespace

API cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream h) { return fill(to, v, n, h, (void *)cuMemsetD8Async); }
API cuMemsetD32Async(CUdeviceptr to, unsigned v, size_t n, CUstream h) { return fill(to, v, n, h, (void *)cuMemsetD32Async); }
API cuMemsetD8_v2(CUdeviceptr to, unsigned char v, size_t n) {
  CUresult r = cuMemsetD8Async(to, v, n, nullptr);
  return r ? r : cuStreamSynchronize(nullptr);
}
API cuMemsetD32_v2(CUdeviceptr to, unsigned v, size_t n) {
  CUresult r = cuMemsetD32Async(to, v, n, nullptr);
  return r ? r : cuStreamSynchronize(nullptr);
}

// ---- words

API cuStreamWriteValue32_v2(CUstream h, CUdeviceptr p, cuuint32_t value, unsigned) {
  ENTER(d)
  STREAM(s, d, h)
  if (p % 4 || !reach(d, p, 4, writes)) return invalid;
  return put(s, {(void *)cuStreamWriteValue32_v2, [=] {
                   guarded(d, "a stream's write touched memory that is not there", [&] { ((std::atomic<uint32_t> *)p)->store(value); });
                 }});
}

API cuStreamWaitValue32_v2(CUstream h, CUdeviceptr p, cuuint32_t value, unsigned flags) {
  ENTER(d)
  STREAM(s, d, h)
  unsigned how = flags & 3;
  if (flags & ~(3u | 1u << 30) || p % 4 || !reach(d, p, 4, reads)) return invalid;
  return put(s, {(void *)cuStreamWaitValue32_v2, [=] {
                   guarded(d, "a stream's wait touched memory that is not there", [&] {
                     auto *word = (std::atomic<uint32_t> *)p;
                     for (int steps = 0;;) {
                       uint32_t v = *word;
                       if (how == CU_STREAM_WAIT_VALUE_GEQ ? (int32_t)(v - value) >= 0
                           : how == CU_STREAM_WAIT_VALUE_EQ ? v == value
                           : how == CU_STREAM_WAIT_VALUE_AND ? (v & value) != 0 : ~(v | value) != 0)
                         return;
                       if (!pause(d, steps)) return;
                     }
                   });
                 }});
}

// ---- graphs: what was recorded, in the order in which it was, which is an order that its edges allow

namespace {

struct Graph {
  std::vector<Op> ops;
};

auto &graphs = *new std::set<Graph *>;
auto &execs = *new std::map<Graph *, std::shared_ptr<std::vector<Op>>>; // what launches that are queued use stays

} // namespace

API cuStreamBeginCapture_v2(CUstream h, CUstreamCaptureMode) {
  ENTER(d)
  STREAM(s, d, h)
  if (!h) return captureForbidden;
  std::lock_guard<std::mutex> l(s->m);
  if (s->capture) return illegalState;
  s->capture = std::make_shared<Capture>();
  s->capture->origin = s;
  s->capture->length[s];
  return success;
}

API cuStreamEndCapture(CUstream h, CUgraph *out) {
  ENTER(d)
  STREAM(s, d, h)
  *out = nullptr;
  std::shared_ptr<Capture> c;
  {
    std::lock_guard<std::mutex> l(s->m);
    c = s->capture;
  }
  if (!c) return illegalState;
  if (c->origin != s) return captureUnmatched;
  bool joined = true;
  for (auto &[other, length] : c->length) {
    std::lock_guard<std::mutex> l(other->m);
    other->capture = nullptr;
    if (other != s && c->joined[other] != length + 1) joined = false;
  }
  if (c->broken) return captureInvalid;
  if (!joined) return captureUnjoined;
  Lock l(tables);
  Graph *g = new Graph{c->ops};
  graphs.insert(g);
  *out = (CUgraph)g;
  return success;
}

API cuGraphDestroy(CUgraph h) {
  Lock l(tables);
  if (!graphs.erase((Graph *)h)) return invalid;
  delete (Graph *)h;
  return success;
}

API cuGraphInstantiateWithFlags(CUgraphExec *x, CUgraph h, unsigned long long) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  if (!graphs.count((Graph *)h)) return invalid;
  Graph *g = new Graph;
  execs[g] = std::make_shared<std::vector<Op>>(((Graph *)h)->ops);
  *x = (CUgraphExec)g;
  return success;
}

API cuGraphExecUpdate_v2(CUgraphExec x, CUgraph h, CUgraphExecUpdateResultInfo *info) {
  ENTER(d)
  (void)d;
  Lock l(tables);
  auto i = execs.find((Graph *)x);
  if (i == execs.end() || !graphs.count((Graph *)h)) return invalid;
  const std::vector<Op> &now = *i->second, &next = ((Graph *)h)->ops;
  bool same = now.size() == next.size();
  for (size_t k = 0; same && k < now.size(); k++) same = now[k].code == next[k].code;
  *info = {same ? 0u : 2u, nullptr, nullptr};
  if (!same) return graphUpdate;
  i->second = std::make_shared<std::vector<Op>>(next);
  return success;
}

API cuGraphLaunch(CUgraphExec x, CUstream h) {
  ENTER(d)
  STREAM(s, d, h)
  std::shared_ptr<std::vector<Op>> ops;
  {
    Lock l(tables);
    auto i = execs.find((Graph *)x);
    if (i == execs.end()) return invalid;
    ops = i->second;
  }
  return put(s, {(void *)cuGraphLaunch, [d, ops] {
                   for (const Op &op : *ops) {
                     if (health(d)) return;
                     op.run();
                   }
                 }});
}

API cuGraphExecDestroy(CUgraphExec x) {
  Lock l(tables);
  if (!execs.erase((Graph *)x)) return invalid;
  delete (Graph *)x;
  return success;
}
