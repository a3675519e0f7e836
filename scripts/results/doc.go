// Command results makes docs/results.md: the experiments on the embedded model on which
// the project's claims rest. [Measure] runs them and returns [Figures], plain numbers that
// are written to docs/results.json; the page and the tables in docs/results are made from
// them. Every sentence of the page that states a result is derived from the figures, so
// that text and tables cannot contradict each other.
//
//	cd scripts/results && go run . -only losses   # one part again
//	cd scripts/results && go run . -render        # the page and the tables, from results.json
package main
