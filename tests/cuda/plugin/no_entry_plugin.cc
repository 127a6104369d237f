// A library that is no plug-in.
extern "C" int sparseagg_no_entry() { return 0; }
