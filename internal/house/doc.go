// Package house holds the rules of the whole module as tests: imports only go
// downwards, the exported names are those of a reviewed list, and links in the
// documents lead somewhere. It exports nothing.
package house
