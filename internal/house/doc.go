// Package house holds the rules of the whole module as tests: imports go
// downwards only, the exported names are those of a reviewed list, and the
// links of the documents lead somewhere. It exports nothing.
package house
