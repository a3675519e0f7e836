// Package results makes docs/results.md: the experiments on the embedded model
// on which the project's claims rest. [Measure] runs them and returns
// [Figures], plain numbers that go to docs/results.json and back;
// [Figures.WriteMarkdown] makes the page from them. Every sentence of the page
// that states a result is derived from the figures, so that text and tables
// cannot contradict each other.
package results
