// SPDX-License-Identifier: Apache-2.0
#include "host_backend/common/option_table.h"

#include <cstdio>

#include "host_backend/common/json.h"

namespace causeway {
namespace {

// What lists of options leave out has an empty group.
bool IsHidden(const CLI::Option& option) {
  return option.get_group().empty();
}

Json TableOf(const CLI::Option& option) {
  Json names = Json::array();
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const bool takes_value = option.get_items_expected_max() > 0;
  return {{"names", names},
          {"positional", option.get_positional() ? option.get_name(true, false) : ""},
          {"value", takes_value ? option.get_type_name() : ""},
          {"repeatable", takes_value && option.get_expected_max() > 1},
          {"required", option.get_required()},
          {"default", takes_value ? option.get_default_str() : ""},
          {"description", option.get_description()}};
}

Json TableOf(const CLI::App& app) {
  Json table = {{"name", app.get_name()},
                {"description", app.get_description()},
                {"footer", app.get_footer()},
                {"options", Json::array()},
                {"commands", Json::array()}};
  for (const CLI::Option* option : app.get_options()) {
    if (!IsHidden(*option)) table["options"].push_back(TableOf(*option));
  }
  for (const CLI::App* command : app.get_subcommands({})) table["commands"].push_back(TableOf(*command));
  return table;
}

}  // namespace

void AddOptionTable(CLI::App& app) {
  app.add_flag_callback("--option-table",
                        [&app] {
                          std::printf("%s\n", JsonText(TableOf(app)).c_str());
                          throw CLI::Success();
                        })
      ->group("");
}

}  // namespace causeway
