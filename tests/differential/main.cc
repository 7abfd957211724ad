// SPDX-License-Identifier: Apache-2.0
// Runs programs of driver calls against the libcuda.so.1 that is loaded, and writes what was answered: one batch of one
// process. differential.py starts it natively and through Causeway, and compares.
//
// usage: differential --seed S --first F --count N --left-out FILE [--names FILE] --out FILE --status FILE
//        differential ... --program FILE   the calls of that file as one program, instead of generated ones
//        differential ... --explain        each call and each answer as text on stdout
//        differential ... --serve          for each line of stdin, "number N" or "calls FILE", that program as --explain tells it
//        differential ... --times          also where the time went, in rows, on stderr
//        differential ... --settle         waits for all work after each call, and says on stderr behind which one a context was lost
//        differential --list-names         each row, whether the library has it (1 or 0), and its parameters' names
// --names FILE: rows whose names are not in it are not generated (another library lacks them).
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
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
  bool explain = false, list_names = false, serve = false, times = false, settles = false;
};

// Where this process is, in a file that outlives it.
struct Status {
  uint32_t program, call;
  char text[1024];  // of the call, as ToText gives it
};

// What the batch has come to so far: the file is brought up to date after each program, so that a program that ends the process
// takes nothing of those before it along. This header, then room for `room` of Outcome, then `pairs` of Pair.
struct Header {
  uint32_t programs, pairs, room, unused;
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

// Where the time goes.
class Times {
 public:
  using Clock = std::chrono::steady_clock;
  static Clock::time_point Now() { return Clock::now(); }
  void Add(const char* what, Clock::time_point begin) {
    auto& [spent, count] = spent_[what];
    spent += std::chrono::duration<double, std::milli>(Now() - begin).count();
    ++count;
  }
  void Tell() const {
    std::vector<std::pair<double, std::string>> lines;
    for (const auto& [what, its] : spent_) lines.emplace_back(its.first, what);
    std::sort(lines.rbegin(), lines.rend());
    for (const auto& [spent, what] : lines) {
      std::fprintf(stderr, "%10.1f ms in %6u of %s\n", spent, spent_.at(what).second, what.c_str());
    }
  }

 private:
  std::map<std::string, std::pair<double, uint32_t>> spent_;
};

class Batch {
 public:
  Batch(const Options& options, const std::vector<RowPlan>& plans) : options_(options), plans_(plans) {}

  int Run() {
    OpenFiles();
    for (uint32_t i = 0; i < options_.count; ++i) {
      status_->program = options_.first + i;
      if (!Renew(i)) return 2;
      RunProgram(options_.first + i, options_.program);
      Write();
      if (fixture_->world.broken) break;
    }
    End();
    return 0;
  }

  int Serve() {
    OpenFiles();
    std::string kind, name;
    for (uint32_t i = 0; std::cin >> kind >> name; ++i) {
      if (!Renew(i)) return 2;
      const bool numbered = kind == "number";
      const uint32_t number =
          numbered ? static_cast<uint32_t>(std::strtoul(name.c_str(), nullptr, 0)) : options_.first;
      RunProgram(number, numbered ? nullptr : name.c_str());
      std::printf(fixture_->world.broken ? "served, and the context is lost\n" : "served\n");
      std::fflush(stdout);
      if (fixture_->world.broken) break;
    }
    End();
    return 0;
  }

 private:
  // New contexts before the first program, and before each kProgramsOfContext-th one. False: there is no GPU, say; it was said.
  bool Renew(uint32_t done) {
    if (done % kProgramsOfContext != 0) return true;
    Note(0, "0 t0 new_contexts");
    executor_.reset();
    fixture_.reset();
    fixture_ = std::make_unique<Fixture>();
    if (!fixture_->error.empty()) {
      std::fprintf(stderr, "differential: %s\n", fixture_->error.c_str());
      return false;
    }
    executor_ = std::make_unique<Executor>(fixture_->world, plans_, explains());
    return true;
  }
  void End() {
    std::fflush(stdout);
    if (options_.times) times_.Tell();
    if (fixture_ != nullptr && fixture_->world.broken) _exit(0);  // what is left cannot be ended
    executor_.reset();
    fixture_.reset();
  }
  bool explains() const { return options_.explain || options_.serve; }

  void OpenFiles() {
    if (options_.out != nullptr) out_ = open(options_.out, O_WRONLY | O_CREAT, 0600);
    header_.room = options_.count;
    if (options_.status == nullptr) return;
    const int file = open(options_.status, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(Status)) != 0) return;
    void* at = mmap(nullptr, sizeof(Status), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) status_ = static_cast<Status*>(at);
    close(file);
  }

  // The programs's hash is of all its answers in order, and of what its memory holds at the end.
  void RunProgram(uint32_t number, const char* file) {
    World& world = fixture_->world;
    world.BeginProgram();
    status_->program = number;
    Hash hash;
    uint32_t calls = 0;
    if (explains()) std::printf("program %u\n", number);
    if (file != nullptr) {
      std::ifstream in(file);
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
    Note(~0u, "");
    const auto begin = Times::Now();
    hash.Add(executor_->EndProgram(explains() ? &text : nullptr));
    if (options_.times) times_.Add("(the end of a program)", begin);
    if (explains())
      std::printf("%sprogram %u is %016llx\n", text.c_str(), number,
                  static_cast<unsigned long long>(hash.value()));
    outcomes_.push_back({hash.value(), calls, 0});
    header_.calls += calls;
  }

  void RunCall(const Call& call, Hash& hash, uint32_t& calls) {
    const std::string text = ToText(call);
    Note(call.id, text.c_str());
    if (explains()) {
      std::printf("> %s\n", text.c_str());
      std::fflush(stdout);
    }
    const auto begin = Times::Now();
    const Answer answer = executor_->Run(call);
    if (options_.times) times_.Add(call.row->name, begin);
    if (explains()) {
      std::printf("%s\n", answer.text.c_str());
      std::fflush(stdout);
    }
    if (!answer.ran) {
      ++header_.left_out;
      return;
    }
    if (options_.settles) Settle(call, answer);
    ++calls;
    ++pairs_[uint32_t{call.row->index} << 16 | static_cast<uint32_t>(answer.result)];
    hash.Add(answer.hash);
  }

  // What a call submits shows its error later otherwise. Waiting also makes memory free for other streams, so that later calls run that
  // would be left out: the program may take another course than without.
  void Settle(const Call& call, const Answer& answer) {
    World& world = fixture_->world;
    const bool lost_by_then = world.broken;
    if (!lost_by_then) world.Quiesce();
    if (world.broken)
      std::fprintf(stderr, "program %u lost a context %s %s = %d\n", status_->program,
                   lost_by_then ? "as is told by" : "behind", ToText(call).c_str(), int(answer.result));
  }

  void Note(uint32_t call, const char* text) {
    status_->call = call;
    std::strncpy(status_->text, text, sizeof status_->text - 1);
  }

  void Write() {
    if (out_ < 0) return;
    header_.programs = static_cast<uint32_t>(outcomes_.size());
    header_.broken = fixture_->world.broken ? 1 : 0;
    std::vector<Pair> pairs;
    for (const auto& [key, count] : pairs_)
      pairs.push_back({static_cast<uint16_t>(key >> 16), static_cast<uint16_t>(key), count});
    header_.pairs = static_cast<uint32_t>(pairs.size());
    const auto put = [&](const void* from, size_t bytes, size_t at) {
      if (pwrite(out_, from, bytes, static_cast<off_t>(at)) != static_cast<ssize_t>(bytes)) std::abort();
    };
    put(&outcomes_.back(), sizeof(Outcome), sizeof header_ + (outcomes_.size() - 1) * sizeof(Outcome));
    put(pairs.data(), pairs.size() * sizeof(Pair), sizeof header_ + options_.count * sizeof(Outcome));
    put(&header_, sizeof header_, 0);
  }

  const Options& options_;
  const std::vector<RowPlan>& plans_;
  std::unique_ptr<Fixture> fixture_;
  std::unique_ptr<Executor> executor_;
  Status unwatched_{};
  Status* status_ = &unwatched_;
  int out_ = -1;
  Times times_;
  Header header_{};
  std::vector<Outcome> outcomes_;
  std::map<uint32_t, uint32_t> pairs_;
};

bool Parse(int count, char** words, Options* options) {
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--explain") {
      options->explain = true;
    } else if (word == "--times") {
      options->times = true;
    } else if (word == "--settle") {
      options->settles = true;
    } else if (word == "--serve") {
      options->serve = true;
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
  Batch batch(options, plans);
  return options.serve ? batch.Serve() : batch.Run();
}

}  // namespace
}  // namespace causeway::differential

int main(int count, char** words) {
  return causeway::differential::Main(count, words);
}
