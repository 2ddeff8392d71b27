// The CPython module tileformer._C. Importing it registers the operators; what is in it needs no tensors.
#include <Python.h>

#include <string>

#include "kv_cache_type.h"
#include "sdpa_override.h"
#include "tileformer/isa.h"
#include "tileformer/version.h"

namespace {

using namespace tileformer;

PyObject* isa(PyObject*, PyObject*) {
  Isa active;
  const Status status = active_isa(&active);
  if (!status) {
    PyErr_SetString(PyExc_ValueError, status.message().c_str());
    return nullptr;
  }
  return PyUnicode_FromString(name_of(active));
}

PyObject* names(const std::vector<Isa>& isas) {
  PyObject* list = PyList_New(0);
  if (list == nullptr) return nullptr;
  for (const Isa isa : isas) {
    PyObject* name = PyUnicode_FromString(name_of(isa));
    if (name == nullptr || PyList_Append(list, name) != 0) {
      Py_XDECREF(name);
      Py_DECREF(list);
      return nullptr;
    }
    Py_DECREF(name);
  }
  return list;
}

PyObject* supported(PyObject*, PyObject*) { return names(supported_isas()); }
PyObject* compiled(PyObject*, PyObject*) { return names(compiled_isas()); }

PyObject* set_override(PyObject*, PyObject* on) {
  const int truth = PyObject_IsTrue(on);
  if (truth < 0) return nullptr;
  torch_binding::set_sdpa_override(truth != 0);
  Py_RETURN_NONE;
}

PyObject* get_override(PyObject*, PyObject*) { return PyBool_FromLong(torch_binding::sdpa_override()); }

PyObject* counts(PyObject*, PyObject*) {
  const torch_binding::SdpaCounts c = torch_binding::sdpa_counts();
  return Py_BuildValue("{s:L,s:L,s:L,s:L}", "tileformer", static_cast<long long>(c.here), "torch",
                       static_cast<long long>(c.native), "tileformer_backward",
                       static_cast<long long>(c.backward_here), "torch_backward",
                       static_cast<long long>(c.backward_native));
}

PyMethodDef methods[] = {
    {"isa", isa, METH_NOARGS,
     "Name of the ISA in force. ValueError if TILEFORMER_ISA names one that is not here."},
    {"supported_isas", supported, METH_NOARGS, "Names of the ISAs that this machine can run, best first."},
    {"compiled_isas", compiled, METH_NOARGS, "Names of the ISAs in this build, best first."},
    {"set_sdpa_override", set_override, METH_O,
     "Turn the override of torch's CPU attention kernel on or off."},
    {"sdpa_override", get_override, METH_NOARGS, "Whether the override is on."},
    {"sdpa_counts", counts, METH_NOARGS, "How many calls of torch's attention were carried out where."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "tileformer._C", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit__C() {
  PyObject* module = PyModule_Create(&definition);
  if (module != nullptr && (PyModule_AddStringConstant(module, "__version__", TILEFORMER_VERSION) != 0 ||
                            !torch_binding::add_kv_cache(module))) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
