// SPDX-License-Identifier: Apache-2.0
// Runs programs of driver calls against the libcuda.so.1 that is loaded, and writes what was answered: one batch of one
// process. differential.py starts it natively and through Causeway, and compares.
//
// usage: differential --seed S --first F --count N --left-out FILE [--names FILE] --out FILE --status FILE
//        differential ... --program FILE   the calls of that file as one program, instead of generated ones
//        differential ... --explain        each call and each answer as text on stdout
//        differential --list-names         each row, whether the library has it (1 or 0), and its parameters' names
// --names FILE: rows whose names are not in it are not generated (another library lacks them).
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>

#include "tests/differential/executor.h"
#include "tests/differential/fixture.h"
#include "tests/differential/generator.h"
#include "tests/differential/texts.h"

namespace causeway::differential {
namespace {

constexpr uint32_t kProgramsOfContext = 500;

struct Options {
  uint64_t seed = 0;
  uint32_t first = 0, count = 1;
  const char* left_out = nullptr;
  const char* names = nullptr;
  const char* out = nullptr;
  const char* status = nullptr;
  const char* program = nullptr;
  bool explain = false, list_names = false;
};

// Where this process is, in a file that outlives it.
struct Status {
  uint32_t program, call;
  char row[56];
};

// What the batch comes to. The file: this header, then `programs` of Outcome, then `pairs` of Pair.
struct Header {
  uint32_t programs, pairs;
  uint64_t calls;
  uint32_t broken;    // the last program lost the context
  uint32_t left_out;  // calls that were not made: they could have been races
};
struct Outcome {
  uint64_t hash;
  uint32_t calls;
  uint32_t unused;
};
struct Pair {
  uint16_t row;
  uint16_t result;
  uint32_t count;
};

class Batch {
 public:
  Batch(const Options& options, const std::vector<RowPlan>& plans) : options_(options), plans_(plans) {}

  int Run() {
    OpenStatus();
    for (uint32_t i = 0; i < options_.count; ++i) {
      if (i % kProgramsOfContext == 0) {
        executor_.reset();
        fixture_.reset();
        fixture_ = std::make_unique<Fixture>();
        if (!fixture_->error.empty()) {
          std::fprintf(stderr, "differential: %s\n", fixture_->error.c_str());
          return 2;
        }
        executor_ = std::make_unique<Executor>(fixture_->world, plans_, options_.explain);
      }
      RunProgram(options_.first + i);
      if (fixture_->world.broken) break;
    }
    const bool broken = fixture_->world.broken;
    Write(broken);
    std::fflush(stdout);
    if (broken) _exit(0);  // what is left cannot be ended
    executor_.reset();
    fixture_.reset();
    return 0;
  }

 private:
  void OpenStatus() {
    if (options_.status == nullptr) return;
    const int file = open(options_.status, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(Status)) != 0) return;
    void* at = mmap(nullptr, sizeof(Status), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) status_ = static_cast<Status*>(at);
    close(file);
  }

  // The programs's hash is of all its answers in order, and of what its memory holds at the end.
  void RunProgram(uint32_t number) {
    World& world = fixture_->world;
    world.BeginProgram();
    status_->program = number;
    Hash hash;
    uint32_t calls = 0;
    if (options_.explain) std::printf("program %u\n", number);
    if (options_.program != nullptr) {
      std::ifstream in(options_.program);
      std::string line;
      while (std::getline(in, line) && !world.broken) {
        if (const auto call = FromText(line)) RunCall(*call, hash, calls);
      }
    } else {
      Generator generator(world, plans_);
      generator.Begin(Mixed(options_.seed) ^ Mixed(number));
      for (uint32_t id = 1; id <= generator.length() && !world.broken; ++id)
        RunCall(generator.Next(id), hash, calls);
    }
    std::string text;
    status_->call = ~0u;
    std::strcpy(status_->row, "the end of the program");
    hash.Add(executor_->EndProgram(options_.explain ? &text : nullptr));
    if (options_.explain)
      std::printf("%sprogram %u is %016llx\n", text.c_str(), number,
                  static_cast<unsigned long long>(hash.value()));
    outcomes_.push_back({hash.value(), calls, 0});
    header_.calls += calls;
  }

  void RunCall(const Call& call, Hash& hash, uint32_t& calls) {
    status_->call = call.id;
    std::strncpy(status_->row, call.row->name, sizeof status_->row - 1);
    if (options_.explain) {
      std::printf("> %s\n", ToText(call).c_str());
      std::fflush(stdout);
    }
    const Answer answer = executor_->Run(call);
    if (options_.explain) {
      std::printf("%s\n", answer.text.c_str());
      std::fflush(stdout);
    }
    if (!answer.ran) {
      ++header_.left_out;
      return;
    }
    ++calls;
    ++pairs_[uint32_t{call.row->index} << 16 | static_cast<uint32_t>(answer.result)];
    hash.Add(answer.hash);
  }

  void Write(bool broken) {
    if (options_.out == nullptr) return;
    header_.programs = static_cast<uint32_t>(outcomes_.size());
    header_.pairs = static_cast<uint32_t>(pairs_.size());
    header_.broken = broken ? 1 : 0;
    std::ofstream out(options_.out, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&header_), sizeof header_);
    out.write(reinterpret_cast<const char*>(outcomes_.data()),
              static_cast<std::streamsize>(outcomes_.size() * sizeof(Outcome)));
    for (const auto& [key, count] : pairs_) {
      const Pair pair{static_cast<uint16_t>(key >> 16), static_cast<uint16_t>(key), count};
      out.write(reinterpret_cast<const char*>(&pair), sizeof pair);
    }
  }

  const Options& options_;
  const std::vector<RowPlan>& plans_;
  std::unique_ptr<Fixture> fixture_;
  std::unique_ptr<Executor> executor_;
  Status unwatched_{};
  Status* status_ = &unwatched_;
  Header header_{};
  std::vector<Outcome> outcomes_;
  std::map<uint32_t, uint32_t> pairs_;
};

bool Parse(int count, char** words, Options* options) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--explain") {
      options->explain = true;
    } else if (word == "--list-names") {
      options->list_names = true;
    } else if (i + 1 == count) {
      return false;
    } else if (const char* value = words[++i]; word == "--seed") {
      options->seed = std::strtoull(value, nullptr, 0);
    } else if (word == "--first") {
      options->first = static_cast<uint32_t>(std::strtoul(value, nullptr, 0));
    } else if (word == "--count") {
      options->count = static_cast<uint32_t>(std::strtoul(value, nullptr, 0));
    } else if (word == "--left-out") {
      options->left_out = value;
    } else if (word == "--names") {
      options->names = value;
    } else if (word == "--out") {
      options->out = value;
    } else if (word == "--status") {
      options->status = value;
    } else if (word == "--program") {
      options->program = value;
    } else {
      return false;
    }
  }
  return options->list_names || options->left_out != nullptr;
}

// Rows that are not in the file are as if the library lacked them.
void KeepNames(const char* path) {
  std::ifstream in(path);
  std::map<std::string, bool> kept;
  std::string name;
  while (in >> name) kept[name] = true;
  for (Row& row : AllRows()) {
    if (!kept.contains(row.name)) row.function = nullptr;
  }
}

int Main(int count, char** words) {
  Options options;
  if (!Parse(count, words, &options)) {
    std::fprintf(stderr, "differential: the usage is in main.cc; differential.py runs this program\n");
    return 2;
  }
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "differential: %s\n", dlerror());
    return 2;
  }
  LookUpFunctions(library);
  if (options.list_names) {
    for (const Row& row : AllRows()) {
      std::printf("%s %d", row.name, row.function != nullptr);
      for (const Parameter& parameter : row.parameters) std::printf(" %s", parameter.name.c_str());
      std::printf("\n");
    }
    return 0;
  }
  if (options.names != nullptr) KeepNames(options.names);
  LeftOut left_out;
  if (!left_out.Read(options.left_out)) {
    std::fprintf(stderr, "differential: a line of %s is not ROW PARAMETER KIND why\n", options.left_out);
    return 2;
  }
  const std::vector<RowPlan> plans = MakePlans(left_out);
  return Batch(options, plans).Run();
}

}  // namespace
}  // namespace causeway::differential

int main(int count, char** words) {
  return causeway::differential::Main(count, words);
}
