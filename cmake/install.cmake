# The CMake package: find_package(tileformer) gives the target tileformer::tileformer.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tileformer)
configure_package_config_file(cmake/tileformerConfig.cmake.in ${PROJECT_BINARY_DIR}/tileformerConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tileformerConfigVersion.cmake COMPATIBILITY SameMinorVersion)

# The wheel installs only the component "python"; these stay out of it.
install(TARGETS tileformer EXPORT tileformerTargets COMPONENT cpp)
install(DIRECTORY include/tileformer DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)
install(EXPORT tileformerTargets NAMESPACE tileformer:: DESTINATION ${package_dir} COMPONENT cpp)
install(FILES ${PROJECT_BINARY_DIR}/tileformerConfig.cmake ${PROJECT_BINARY_DIR}/tileformerConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT cpp)
