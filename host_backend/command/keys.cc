// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/keys.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <string_view>

#include "host_backend/command/command.h"
#include "host_backend/common/plain_name.h"

namespace causeway::command {
namespace {

// A time that lies ahead; 0: `text` is none.
int64_t ExpiryOf(const std::string& text, int64_t now) {
  if (const int64_t time = ParseTime(text); time > now) return time;
  if (text.size() < 2 || text.size() > 7) return 0;
  int64_t number = 0;
  for (const char c : std::string_view(text).substr(0, text.size() - 1)) {
    if (c < '0' || c > '9') return 0;
    number = number * 10 + (c - '0');
  }
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  const char unit = text.back();
  const int64_t seconds = unit == 'm' ? kMinute : unit == 'h' ? kHour : unit == 'd' ? kDay : 0;
  return number * seconds > 0 ? now + number * seconds : 0;
}

std::string StateOf(const Key& key) {
  if (key.revoked != 0) return "revoked " + TimeText(key.revoked);
  if (key.expires == 0) return "good";
  return (key.expires <= std::time(nullptr) ? "expired " : "good until ") + TimeText(key.expires);
}

// The key in a guest's file, of that VM here: a guest may prove one key to several hosts.
Result<Key> KeyFrom(const std::string& path, const std::string& vm) {
  Key key;
  std::string problem = ReadKeyFile(path, &key);
  if (problem.empty() && (!key.has_secret || key.revoked != 0))
    problem = "the key file " + path + " has no secret";
  if (!problem.empty()) {
    problem[0] = 'T';
    return Error{problem + "."};
  }
  key.vm = vm;
  key.created = std::time(nullptr);
  return key;
}

int Create(const KeysCommands& options) {
  const std::string vm = options.vm.empty() ? options.name : options.vm;
  for (const std::string& name : {options.name, vm})
    if (!IsPlainName(name))
      return Failed("\"" + name.substr(0, 60) +
                    "\" is no name: letters, digits, and _ . - between them, at most 48.");
  if (auto old = ReadKey(options.folder, options.name); old.ok() && old.value().revoked == 0)
    return Failed("There is a key " + options.name + " already; revoke it first, or choose another name.");
  auto fresh = options.from.empty() ? NewKey(vm) : KeyFrom(options.from, vm);
  if (!fresh.ok()) return Failed(fresh.error());
  // The guest chose it: a key that was revoked under any name does not come back, and none has two names.
  if (!options.from.empty()) {
    std::vector<std::string> problems;
    if (auto keys = ListKeys(options.folder, &problems); keys.ok()) {
      for (const NamedKey& other : keys.value()) {
        if (other.key.id == fresh.value().id)
          return Failed("The key in " + options.from + " is " + other.name + " of " + options.folder +
                        " already" + (other.key.revoked != 0 ? ", and was revoked" : "") +
                        "; make another one.");
      }
    }
  }
  NamedKey made{options.name, std::move(fresh.value())};
  Key& key = made.key;
  if (!options.expires.empty() && (key.expires = ExpiryOf(options.expires, key.created)) == 0)
    return Failed(
        "--expires " + options.expires.substr(0, 40) +
        " is no time that lies ahead: give days (90d), hours (12h), minutes (30m), or a time such as "
        "2030-12-31T12:00:00Z.");
  // The guest's file first: a key that nobody can use would have to be revoked.
  if (!options.output.empty()) {
    if (std::string problem = WriteGuestKey(key, options.output); !problem.empty()) return Failed(problem);
  }
  if (std::string problem = WriteKey(options.folder, made); !problem.empty()) {
    if (!options.output.empty()) unlink(options.output.c_str());
    return Failed(problem);
  }
  if (!options.from.empty()) {
    std::printf("Key %s of VM %s is known here, too: the guest goes on with the file that it has.\n",
                options.name.c_str(), vm.c_str());
    return 0;
  }
  if (options.output.empty()) {
    std::fputs(KeyText(key, true).c_str(), stdout);
    return 0;
  }
  std::printf(
      "Key %s of VM %s is made. Copy %s to %s in the guest, readable for those who may use the GPU there, "
      "and "
      "delete it here.\n",
      options.name.c_str(), vm.c_str(), options.output.c_str(), kGuestKeyFile);
  return 0;
}

int List(const KeysCommands& options) {
  std::vector<std::string> problems;
  const auto keys = ListKeys(options.folder, &problems);
  if (!keys.ok()) return Failed(keys.error());
  std::printf("%-24s %-24s %-32s %s\n", "KEY", "VM", "ID", "STATE");
  for (const NamedKey& entry : keys.value())
    std::printf("%-24s %-24s %-32s %s\n", entry.name.c_str(), entry.key.vm.c_str(), entry.key.id.c_str(),
                StateOf(entry.key).c_str());
  for (const std::string& problem : problems) std::fprintf(stderr, "causeway: %s\n", problem.c_str());
  return problems.empty() ? 0 : 1;
}

int Show(const KeysCommands& options) {
  const auto key = ReadKey(options.folder, options.name);
  if (!key.ok()) return Failed(key.error());
  if (!options.secret) {
    std::printf("key %s\nvm %s\nid %s\ncreated %s\nstate %s\n", options.name.c_str(), key.value().vm.c_str(),
                key.value().id.c_str(), TimeText(key.value().created).c_str(), StateOf(key.value()).c_str());
    return 0;
  }
  if (!key.value().has_secret)
    return Failed("The key " + options.name + " was revoked and has no secret any more.");
  std::fputs(KeyText(key.value(), true).c_str(), stdout);
  return 0;
}

int Revoke(const KeysCommands& options) {
  auto key = ReadKey(options.folder, options.name);
  if (!key.ok()) return Failed(key.error());
  if (key.value().revoked != 0)
    return Failed("The key " + options.name + " was revoked at " + TimeText(key.value().revoked) + ".");
  key.value().revoked = std::time(nullptr);
  key.value().has_secret = false;
  if (std::string problem = WriteKey(options.folder, {options.name, key.value()}); !problem.empty())
    return Failed(problem);
  std::printf("Key %s is revoked: its sessions end now, and none begins any more.\n", options.name.c_str());
  return 0;
}

}  // namespace

void AddKeysCommands(CLI::App& app, KeysCommands& options) {
  auto* keys = app.add_subcommand("keys", "Make and revoke the keys by which remote guests are known");
  keys->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, bool names_one) {
    auto* command = keys->add_subcommand(name, help);
    command->add_option("--keys", options.folder, "The folder of keys")
        ->type_name("FOLDER")
        ->capture_default_str();
    if (names_one) command->add_option("NAME", options.name, "The key's name")->required();
    return command;
  };
  auto* create = add("create", "Make a key, and the file that its guest needs", true);
  create->add_option("--vm", options.vm,
                     "Whose sessions it has: a [[vm]] or [[remote]] of causewayd (default: as NAME)");
  create
      ->add_option("--expires", options.expires,
                   "After so many days (90d), hours (12h) or minutes, or at a time")
      ->type_name("TIME");
  auto* output = create
                     ->add_option("--output", options.output,
                                  "Write the guest's file here instead of to standard output")
                     ->type_name("FILE");
  create
      ->add_option("--from", options.from,
                   "Make no new key: take that of this guest's file, which another host has made")
      ->type_name("FILE")
      ->excludes(output);
  add("list", "List all keys", false);
  add("show", "Show one key", true)
      ->add_flag("--secret", options.secret, "Print the guest's file, with the secret");
  add("revoke", "Revoke a key: its sessions end, and it cannot be used again", true);
}

int RunKeysCommand(const CLI::App& app, const KeysCommands& options) {
  if (!app.got_subcommand("keys")) return -1;
  const CLI::App& keys = *app.get_subcommand("keys");
  if (keys.got_subcommand("create")) return Create(options);
  if (keys.got_subcommand("list")) return List(options);
  if (keys.got_subcommand("show")) return Show(options);
  return Revoke(options);
}

}  // namespace causeway::command
