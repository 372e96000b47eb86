// Modules and kernels: what the PTX text says of them, and the host code that stands for them.
#include "sim.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

namespace sim {

namespace {

struct Param {
  unsigned offset, size;
};

struct Module;

struct Function {
  Module *module;
  std::string name;
  std::vector<Param> params;
  unsigned bytes = 0;            // of all parameters
  unsigned threads = 1024;       // of a block, at most
  unsigned shared = 0, local = 0; // static
  unsigned dynamic = 48 << 10;   // dynamic shared memory allowed
  cusim_kernel *code = nullptr;
};

struct Variable {
  size_t bytes;
};

struct Module {
  Device *d;
  std::map<std::string, Function> functions;
  std::map<std::string, Variable> variables;
};

auto &modules = *new std::set<Module *>;
auto &functions = *new std::set<Function *>;
auto &libraries = *new std::map<std::string, void *>;

// code is a symbol of the libraries that CUSIM_KERNELS names now.
void *code(const std::string &symbol) {
  const char *e = getenv("CUSIM_KERNELS");
  std::string s = e ? e : "";
  for (size_t at = 0; at < s.size();) {
    size_t colon = std::min(s.find(':', at), s.size());
    std::string path = s.substr(at, colon - at);
    at = colon + 1;
    if (path.empty()) continue;
    auto i = libraries.find(path);
    if (i == libraries.end()) {
      void *lib = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!lib) {
        fprintf(stderr, "cusim: CUSIM_KERNELS: %s\n", dlerror());
        continue;
      }
      i = libraries.emplace(path, lib).first;
    }
    if (void *p = dlsym(i->second, symbol.c_str())) return p;
  }
  return nullptr;
}

// Reader goes through PTX text word by word: names, directives, numbers and single punctuation marks.
// Comments are skipped.
struct Reader {
  const char *p;
  std::string word;

  bool next() {
    for (;;) {
      while (isspace((unsigned char)*p)) p++;
      if (p[0] == '/' && p[1] == '/') {
        while (*p && *p != '\n') p++;
      } else if (p[0] == '/' && p[1] == '*') {
        const char *end = strstr(p + 2, "*/");
        p = end ? end + 2 : p + strlen(p);
      } else {
        break;
      }
    }
    word.clear();
    if (!*p) return false;
    if (*p == '"') {
      do word += *p++;
      while (*p && *p != '"');
      if (*p) p++;
      return true;
    }
    if (!part(*p)) {
      word = *p++;
      return true;
    }
    do word += *p++;
    while (part(*p));
    return true;
  }

  static bool part(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '$' || c == '%'; }
};

// width is the bytes of a type such as .u64 or .b8, zero if w is none.
unsigned width(const std::string &w) {
  if (w.size() < 3 || w[0] != '.' || !strchr("ubsf", w[1])) return 0;
  for (size_t i = 2; i < w.size(); i++)
    if (!isdigit((unsigned char)w[i])) return 0;
  unsigned bits = atoi(w.c_str() + 2);
  return bits >= 8 && bits <= 128 && (bits & (bits - 1)) == 0 ? bits / 8 : 0;
}

// Declared is a variable or parameter: [.align N] .type name[count].
struct Declared {
  std::string name;
  unsigned align = 1;
  size_t bytes = 0;
};

// declared reads up to the mark that ends the declaration and leaves it in r.word.
Declared declared(Reader &r) {
  Declared d;
  unsigned size = 0;
  size_t count = 1;
  while (r.next() && r.word != "," && r.word != ")" && r.word != ";" && r.word != "=") {
    if (r.word == ".align") {
      r.next();
      d.align = std::max(1, atoi(r.word.c_str()));
    } else if (unsigned w = width(r.word)) {
      size = w;
    } else if (r.word == "[") {
      r.next();
      count *= r.word == "]" ? 0 : strtoull(r.word.c_str(), nullptr, 10);
    } else if (r.word == ".ptr") { // .ptr [.space] [.align N] is about what it points to
      std::string was = r.word;
      const char *at = r.p;
      while (r.next() && (r.word == ".global" || r.word == ".const" || r.word == ".shared" || r.word == ".local" || r.word == ".align")) {
        if (r.word == ".align") r.next();
        at = r.p;
      }
      r.p = at;
    } else if (isalpha((unsigned char)r.word[0]) || r.word[0] == '_' || r.word[0] == '$' || r.word[0] == '%') {
      d.name = r.word;
    }
  }
  d.bytes = size * count;
  d.align = std::max(d.align, size);
  return d;
}

// parse reads the text. What is wrong with it goes into said.
CUresult parse(const char *text, Module *m, std::string &said) {
  Reader r{text, {}};
  std::map<std::string, unsigned> shared; // of the module; a function has those that it names
  bool version = false, target = false;
  while (r.next()) {
    if (r.word == ".version") {
      r.next();
      version = true;
      int major = atoi(r.word.c_str()), minor = atoi(strchr(r.word.c_str(), '.') ? strchr(r.word.c_str(), '.') + 1 : "0");
      // CUDA 12.n reads PTX 8.n, and 13.n reads 9.n.
      int most = (machine.version / 1000 - 4) * 10 + machine.version % 1000 / 10;
      if (major * 10 + minor > most) {
        said = "ptxas application ptx input, line 1; fatal   : Unsupported .version " + r.word + "; current version is '" + std::to_string(most / 10) + "." + std::to_string(most % 10) + "'";
        return ptxTooNew;
      }
    } else if (r.word == ".target") {
      r.next();
      target = true;
      int arch = r.word.compare(0, 3, "sm_") ? 0 : atoi(r.word.c_str() + 3), ours = machine.major * 10 + machine.minor;
      char last = r.word.back();
      if (!arch || (last == 'a' ? arch != ours : last == 'f' ? arch / 10 != machine.major || arch > ours : arch > ours)) {
        said = "ptxas fatal   : PTX with .target '" + r.word + "' cannot be compiled to architecture 'sm_" + std::to_string(ours) + "a'";
        return noBinary;
      }
    } else if (r.word == ".shared") {
      Declared v = declared(r);
      shared[v.name] = v.bytes;
    } else if (r.word == ".global" || r.word == ".const") {
      Declared v = declared(r);
      m->variables[v.name] = {v.bytes};
      while (r.word != ";" && r.next()) {}
    } else if (r.word == ".entry" || r.word == ".func") {
      bool entry = r.word == ".entry";
      Function f;
      f.module = m;
      r.next();
      if (!entry && r.word == "(") { // what it returns
        while (r.word != ")" && r.next()) {}
        r.next();
      }
      f.name = r.word;
      while (r.next() && r.word != "{" && r.word != ";") {
        if (r.word == ".param") {
          Declared v = declared(r);
          f.bytes = (f.bytes + v.align - 1) / v.align * v.align;
          f.params.push_back({f.bytes, (unsigned)v.bytes});
          f.bytes += v.bytes;
        } else if (r.word == ".maxntid" || r.word == ".reqntid") {
          unsigned n = 1;
          const char *at;
          do {
            r.next();
            n *= atoi(r.word.c_str());
            at = r.p;
          } while (r.next() && r.word == ",");
          r.p = at;
          f.threads = std::min(n, 1024u);
        }
      }
      if (r.word != "{") continue; // declared only
      std::set<std::string> names;
      for (int depth = 1; depth && r.next();) {
        if (r.word == "{") depth++;
        else if (r.word == "}") depth--;
        else if (r.word == ".shared") {
          Declared v = declared(r);
          f.shared = (f.shared + v.align - 1) / v.align * v.align + v.bytes;
        } else if (r.word == ".local") {
          f.local += declared(r).bytes;
        } else if (shared.count(r.word) && names.insert(r.word).second) {
          f.shared += shared[r.word];
        }
      }
      if (entry) m->functions.emplace(f.name, f);
    }
  }
  if (!version || !target) {
    said = "ptxas application ptx input, line 1; fatal   : Missing .version or .target directive";
    return version || target ? invalidPTX : invalidImage;
  }
  return success;
}

Function *function(Device *d, CUfunction h) {
  Lock l(tables);
  Function *f = (Function *)h;
  return functions.count(f) && f->module->d == d ? f : nullptr;
}

unsigned sharedOptIn() { return (machine.major == 12 ? 99 : 227) << 10; }

} // namespace
} // namespace sim

using namespace sim;

API cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, CUjit_option *options, void **values) {
  ENTER(d)
  Module *m = new Module{d, {}, {}};
  std::string said;
  CUresult r = parse((const char *)image, m, said);
  char *log = nullptr;
  size_t len = 0;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log = (char *)values[i];
    if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) len = (size_t)values[i];
  }
  if (log && len) snprintf(log, len, "%s", said.c_str());
  if (r) {
    delete m;
    return r;
  }
  Lock l(tables);
  for (auto &f : m->functions) functions.insert(&f.second);
  modules.insert(m);
  *out = (CUmodule)m;
  return success;
}

API cuModuleLoadData(CUmodule *out, const void *image) { return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr); }

API cuModuleUnload(CUmodule h) {
  ENTER(d)
  {
    Lock l(tables);
    if (!modules.count((Module *)h) || ((Module *)h)->d != d) return invalidHandle;
  }
  if (CUresult r = drainAll(d)) return r;
  Lock l(tables);
  Module *m = (Module *)h;
  for (auto &f : m->functions) functions.erase(&f.second);
  modules.erase(m);
  delete m;
  return success;
}

API cuModuleGetFunction(CUfunction *out, CUmodule h, const char *name) {
  ENTER(d)
  Lock l(tables);
  if (!modules.count((Module *)h) || ((Module *)h)->d != d) return invalidHandle;
  auto &fs = ((Module *)h)->functions;
  auto i = fs.find(name);
  if (i == fs.end()) return notFound;
  Function &f = i->second;
  if (!f.code) f.code = (cusim_kernel *)code(f.name + "__sim");
  if (!f.code) {
    fprintf(stderr, "cusim: the PTX has %s, but no library in CUSIM_KERNELS has %s__sim\n", name, name);
    return notFound;
  }
  *out = (CUfunction)&f;
  return success;
}

// A variable is the one of that name in the host library.
API cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *bytes, CUmodule h, const char *name) {
  ENTER(d)
  Lock l(tables);
  if (!modules.count((Module *)h) || ((Module *)h)->d != d) return invalidHandle;
  auto &vs = ((Module *)h)->variables;
  auto i = vs.find(name);
  void *at = i == vs.end() ? nullptr : code(name);
  if (!at) return notFound;
  addVariable((uintptr_t)at, i->second.bytes);
  if (p) *p = (uintptr_t)at;
  if (bytes) *bytes = i->second.bytes;
  return success;
}

API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction h) {
  ENTER(d)
  Function *f = function(d, h);
  if (!f) return invalidHandle;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = f->threads; break;
  case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = f->shared; break;
  case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = f->local; break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 0; break; // only an assembler knows
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = machine.major * 10 + machine.minor; break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->dynamic; break;
  default: return invalid;
  }
  return success;
}

API cuFuncSetAttribute(CUfunction h, CUfunction_attribute attribute, int value) {
  ENTER(d)
  Function *f = function(d, h);
  if (!f) return invalidHandle;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value + f->shared > sharedOptIn()) return invalid;
  f->dynamic = value;
  return success;
}

// By threads and shared memory; registers, which often are the limit, are not known here.
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction h, int threads, size_t shared) {
  ENTER(d)
  Function *f = function(d, h);
  if (!f || threads <= 0) return f ? invalid : invalidHandle;
  size_t of = machine.major == 12 ? 100 << 10 : 228 << 10, most = machine.major == 12 ? 1536 : 2048;
  *blocks = std::min({most / threads, of / (shared + f->shared + 1024), (size_t)24});
  if ((unsigned)threads > f->threads || shared + f->shared > sharedOptIn()) *blocks = 0;
  return success;
}

API cuLaunchKernel(CUfunction h, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream sh,
                   void **params, void **extra) {
  ENTER(d)
  Function *f = function(d, h);
  Stream *s = stream(d, sh);
  if (!f || !s) return invalidHandle;
  if (!gx || !gy || !gz || !bx || !by || !bz || gx > 0x7fffffffu || gy > 65535 || gz > 65535 || bx > 1024 || by > 1024 || bz > 64 ||
      (unsigned long long)bx * by * bz > f->threads)
    return invalid;
  if (shared > f->dynamic || shared + f->shared > (f->dynamic > 48 << 10 ? sharedOptIn() : 48u << 10)) return invalid;

  struct Launch {
    std::vector<char> bytes;
    std::vector<void *> param;
    cusim_launch l;
  };
  auto k = std::make_shared<Launch>();
  k->bytes.resize(f->bytes + 16);
  char *base = k->bytes.data() + (16 - (uintptr_t)k->bytes.data() % 16) % 16;
  if (f->bytes) {
    const char *buffer = nullptr;
    size_t size = 0;
    for (; extra && *extra; extra += 2) {
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = (const char *)extra[1];
      else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t *)extra[1];
      else return invalid;
    }
    if (buffer ? size != f->bytes : !params) return invalid;
    for (size_t i = 0; i < f->params.size(); i++)
      memcpy(base + f->params[i].offset, buffer ? buffer + f->params[i].offset : params[i], f->params[i].size);
  } else if (extra && *extra) {
    return invalid;
  }
  for (const Param &p : f->params) k->param.push_back(base + p.offset);
  k->l = {{gx, gy, gz}, {bx, by, bz}, shared, (uint32_t)d->card, (uint32_t)k->param.size(), k->param.data()};
  Function *fn = f;
  return put(s, {f, [d, fn, k] {
                   // A pointer among the parameters that leads to memory of another card, which this one may not
                   // reach, is certain to fault there.
                   for (size_t i = 0; i < fn->params.size(); i++) {
                     uintptr_t p;
                     if (fn->params[i].size != 8) continue;
                     memcpy(&p, k->param[i], 8);
                     if (elsewhere(d, p)) return fail(d, illegalAddress, (fn->name + " was given memory that this card may not reach").c_str());
                   }
                   box->launches[d->card]++;
                   int r = 0;
                   guarded(d, (fn->name + " touched memory that is not there").c_str(), [&] { r = fn->code(&k->l); });
                   if (r) fail(d, r, (fn->name + " failed").c_str());
                 }});
}
