# Writes PROFILES_CC: every *.profile of the folder as text (host_backend/sandbox/profile.h).
file(GLOB profiles CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/sandbox/profiles/*.profile)
set(PROFILES_CC ${CMAKE_CURRENT_BINARY_DIR}/sandbox_profiles.cc)
set(entries "")
foreach(profile ${profiles})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${profile})
  get_filename_component(name ${profile} NAME)
  string(REGEX REPLACE "\\.profile$" "" name ${name})
  file(READ ${profile} text)
  string(APPEND entries "    {\"${name}\", R\"profile(${text})profile\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${PROFILES_CC} @ONLY CONTENT "// Made from host_backend/sandbox/profiles.
#include \"host_backend/sandbox/profile.h\"

namespace causeway::sandbox {
const ProfileText kProfiles[] = {
@entries@};
const unsigned kProfileCount = sizeof kProfiles / sizeof kProfiles[0];
}  // namespace causeway::sandbox
")
