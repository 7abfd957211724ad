# cpack reads this before it makes packages: the name of the worker's package ends with the hash of its rows, which is known when
# the worker is built.
file(STRINGS ${CPACK_CAUSEWAY_PACKAGES}/worker/stamp stamp)
list(GET stamp 0 hash)
set(CPACK_DEBIAN_WORKER_PACKAGE_NAME causeway-worker-${hash})
string(APPEND CPACK_DEBIAN_HOST_PACKAGE_DEPENDS ", causeway-worker-${hash} (>= ${CPACK_PACKAGE_VERSION})")
# Of the two releases before this one; apt removes no package that an installed one suggests, and installs none for it.
file(STRINGS ${CPACK_CAUSEWAY_RELEASES} lines REGEX "^[0-9]")
list(REVERSE lines)
set(suggested)
foreach(line IN LISTS lines)
  list(LENGTH suggested count)
  string(REGEX REPLACE "^[^ ]+ " "" older "${line}")
  if(count LESS 2 AND NOT older STREQUAL hash)
    list(APPEND suggested causeway-worker-${older})
  endif()
endforeach()
string(REPLACE ";" ", " CPACK_DEBIAN_HOST_PACKAGE_SUGGESTS "${suggested}")
