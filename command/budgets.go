package command

import (
	"fmt"
	"strconv"

	"github.com/lukv/lukv/lukv"
)

// budgetLists are budgets to compare, whatever unit each is given in.
type budgetLists struct {
	Ratio        []string `group:"policy" sep:"none" placeholder:"R,…" help:"Remove these fractions of the context's cache (default ${ratios})."`
	BudgetTokens []string `group:"policy" sep:"none" placeholder:"N,…" help:"Keep N entries per head on average, in addition to ratios or instead of them."`
	BudgetBytes  []string `group:"policy" sep:"none" placeholder:"SIZE,…" help:"Keep SIZE bytes of keys and values, in addition to ratios or instead of them."`
}

// budgets returns the budgets that the flags name, or the ratios def if they name none.
func (f *budgetLists) budgets(def ...float64) ([]budget, error) {
	var out []budget
	ratios, err := parseRatios(f.Ratio)
	if err != nil {
		return nil, err
	}
	for _, r := range ratios {
		out = append(out, budget{ratio: r})
	}
	for _, s := range splitList(f.BudgetTokens) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return nil, usage("--budget-tokens: found %q, expected at least 1", s)
		}
		out = append(out, budget{tokens: n})
	}
	for _, s := range splitList(f.BudgetBytes) {
		var n byteSize
		if err := n.UnmarshalText([]byte(s)); err != nil {
			return nil, usage("--budget-bytes: %w", err)
		}
		if n < 1 {
			return nil, usage("--budget-bytes: found %q, expected at least 1", s)
		}
		out = append(out, budget{bytes: int64(n)})
	}
	if len(out) == 0 {
		for _, r := range def {
			out = append(out, budget{ratio: r})
		}
	}
	return out, nil
}

// parseRatios reads lists of ratios.
func parseRatios(items []string) ([]float64, error) {
	var out []float64
	for _, s := range splitList(items) {
		r, err := strconv.ParseFloat(s, 64)
		if err != nil || !(r >= 0 && r < 1) {
			return nil, usage("--ratio: found %q, expected at least 0 and below 1", s)
		}
		out = append(out, r)
	}
	return out, nil
}

// budget is how much a policy removes or keeps. At most one field is set; if none is,
// nothing is removed.
type budget struct {
	ratio  float64
	tokens int
	bytes  int64
}

// give sets the budget of a policy.
func (b budget) give(p *lukv.Policy) {
	p.Ratio, p.BudgetTokens, p.BudgetBytes = b.ratio, b.tokens, b.bytes
}

// String returns the budget as it appears in method names: 0.8, 512-entries, 64MiB.
func (b budget) String() string {
	switch {
	case b.tokens > 0:
		return fmt.Sprintf("%d-entries", b.tokens)
	case b.bytes > 0 && b.bytes%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", b.bytes>>20)
	case b.bytes > 0 && b.bytes%(1<<10) == 0:
		return fmt.Sprintf("%dKiB", b.bytes>>10)
	case b.bytes > 0:
		return fmt.Sprintf("%dB", b.bytes)
	}
	return strconv.FormatFloat(b.ratio, 'g', -1, 64)
}
