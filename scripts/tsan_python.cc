// Python in a program that contains ThreadSanitizer, for `make tsan`. See scripts/native.mk.

extern "C" int Py_BytesMain(int argc, char** argv);

int main(int argc, char** argv) { return Py_BytesMain(argc, argv); }
