# tileformer_warnings: the warnings of this project's own targets, never of its users.
add_library(tileformer_warnings INTERFACE)
target_compile_options(tileformer_warnings INTERFACE -Wall -Wextra)
if(TILEFORMER_WARNINGS_AS_ERRORS)
  target_compile_options(tileformer_warnings INTERFACE -Werror)
endif()
# The call convention of wide vectors differs between instruction sets: no matter inside one unit's inlined functions.
target_compile_options(tileformer_warnings INTERFACE -Wno-psabi)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms of GCC 12 in std::string's operator+ (GCC bug 105651).
  target_compile_options(tileformer_warnings INTERFACE -Wno-restrict)
endif()

if(TILEFORMER_SANITIZE)
  add_compile_options(-fsanitize=${TILEFORMER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TILEFORMER_SANITIZE})
endif()
