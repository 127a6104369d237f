// The start of a program that is linked against an older libc (stubs.py). Before 2.34 a program brought the function
// that calls its constructors; the one that the linker adds today leaves that to libc.
#pragma GCC visibility push(hidden)
extern "C" {

using Function = void (*)(int, char**, char**);
using Main = int (*)(int, char**, char**);

extern Function __preinit_array_start[], __preinit_array_end[], __init_array_start[], __init_array_end[];
void _init();
#pragma GCC visibility push(default)
int __real___libc_start_main(Main main, int argc, char** argv, Function init, void (*fini)(), void (*loader_fini)(),
                             void* stack);
#pragma GCC visibility pop

static void CallConstructors(int argc, char** argv, char** environment) {
  for (Function* f = __preinit_array_start; f != __preinit_array_end; ++f) (*f)(argc, argv, environment);
  _init();
  for (Function* f = __init_array_start; f != __init_array_end; ++f) (*f)(argc, argv, environment);
}

int __wrap___libc_start_main(Main main, int argc, char** argv, Function, void (*)(), void (*loader_fini)(),
                             void* stack) {
  return __real___libc_start_main(main, argc, argv, CallConstructors, nullptr, loader_fini, stack);
}

}  // extern "C"
#pragma GCC visibility pop
