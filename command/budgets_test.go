package command

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Budgets of every kind go into one comparison; equal budgets in bytes and in entries
// keep the same fraction.
func TestEvalBudgets(t *testing.T) {
	e := &evalCmd{budgetLists: budgetLists{Ratio: []string{"0.5"}, BudgetTokens: []string{"64,10"}, BudgetBytes: []string{"1MiB,3k,100"}}}
	methods, err := e.methods(nil)
	require.NoError(t, err)
	var names []string
	for _, m := range methods {
		names = append(names, m.Name)
	}
	assert.Equal(t, []string{"full", "snapkv/uniform/0.5", "snapkv/uniform/64-entries", "snapkv/uniform/10-entries",
		"snapkv/uniform/1MiB", "snapkv/uniform/3KiB", "snapkv/uniform/100B"}, names)
	assert.Equal(t, int64(1<<20), methods[4].Policy.BudgetBytes)
	for flag, bad := range map[string][]string{"--budget-tokens": {"0", "x", "-3", "1.5"}, "--budget-bytes": {"0", "x", "-3"}, "--ratio": {"1", "x"}} {
		for _, text := range bad {
			fails(t, exitUsage, flag+`: found "`+text+`"`, "eval", "builtin", flag+"="+text)
			fails(t, exitUsage, flag+`: found "`+text+`"`, "bench", "--tg=1", flag+"="+text)
		}
	}

	// 6 layers of 4 heads, entries of 2·32 numbers of 2 bytes.
	type answers struct {
		Rows []struct {
			Method        string
			RatioAchieved float64 `json:"ratio_achieved"`
			BudgetBytes   int64   `json:"budget_bytes"`
		} `json:"rows"`
	}
	r := decode[answers](t, ok(t, "eval", "builtin", "--fraction", "0.01", "--no-full", "--metric", "keydiff", "--budget-tokens", "64", "--budget-bytes", "196608", "--json"))
	at := map[string]float64{}
	for _, row := range r.Rows {
		at[row.Method] = row.RatioAchieved
	}
	require.Len(t, at, 2)
	assert.Equal(t, at["keydiff/uniform/64-entries"], at["keydiff/uniform/192KiB"])
	assert.Equal(t, int64(196608), r.Rows[len(r.Rows)-1].BudgetBytes)
}

// The bytes reported are those that a budget in bytes bounds, for wrappers, too.
func TestRunReportsBytes(t *testing.T) {
	_, path := sample(t, "niah_single_2", 512)
	for _, metric := range []string{"keydiff", `{"name":"criticalkv","preset":"keydiff"}`, `{"name":"chunkkv","metric":"keydiff"}`} {
		for _, allocator := range []string{"uniform", "adakv", "lukv"} {
			if allocator == "lukv" && metric != "keydiff" {
				continue
			}
			r := decode[runResult](t, ok(t, "run", "builtin", "-c", path, "--json", "--metric", metric, "--allocator", allocator, "--budget-bytes", "200000", "Who?"))
			total := int64(0)
			for _, n := range r.Stats.LayerBytes {
				total += n
			}
			assert.Equal(t, 128*r.Stats.Entries, total, "%s %s", metric, allocator)
			assert.True(t, total <= 200000 && total > 200000-24*128, "%s %s: %d bytes", metric, allocator, total)
			assert.Len(t, r.Stats.LayerBytes, 6)
		}
	}
}
