package runs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
)

// TestLines: a table begins with its columns, their alignment and how many items they have;
// differences and marks are there only if something differs or is missing.
func TestLines(t *testing.T) {
	r := run(t, answers(map[string]int{"full": 2, "snapkv/uniform/0.8": 1}, 2))
	table, err := NewTable([]*Run{r}, Options{})
	require.NoError(t, err)
	var md strings.Builder
	require.NoError(t, table.WriteMarkdown(&md, false))
	lines := strings.Split(md.String(), "\n")
	require.Equal(t, "| method | niah_single_1 | vt | average |", lines[0])
	require.Equal(t, "| --- | ---: | ---: | ---: |", lines[1])
	require.Equal(t, "| n | 2 | 2 | 4 |", lines[2])
	require.NotContains(t, md.String(), missingMark)
	require.NotContains(t, md.String(), "| difference |")
}

// methods returns an answer to each task under each method.
func methods(tasks []string, list ...string) (out []eval.Answer) {
	for _, method := range list {
		for i, task := range tasks {
			a := eval.Answer{Item: i, Task: task, Method: method, Prediction: "<b> & yes", References: []string{"yes"}}
			if parts := strings.Split(method, "/"); len(parts) == 3 {
				a.Metric, a.Allocator = parts[0], parts[1]
				a.Ratio, _ = strconv.ParseFloat(parts[2], 64)
			}
			out = append(out, a)
		}
	}
	return out
}

func rowsOf(table *Table) (out []string) {
	for _, r := range table.Rows {
		out = append(out, r.Method)
	}
	return out
}

// TestOrderOfRows: the full cache comes first, then metrics by name and ratios ascending,
// whatever the order of the answers; filters choose among them, and keep the full cache.
func TestOrderOfRows(t *testing.T) {
	r := run(t, methods([]string{"vt"}, "snapkv/uniform/0.8", "snapkv/lukv/0.8", "keydiff/uniform/0.8", "snapkv/uniform/0.5", "full", "keydiff/uniform/0.5"))
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{Options{}, []string{"full", "keydiff/uniform/0.5", "keydiff/uniform/0.8", "snapkv/uniform/0.5", "snapkv/uniform/0.8", "snapkv/lukv/0.8"}},
		{Options{Allocators: []string{"lukv"}}, []string{"full", "snapkv/lukv/0.8"}},
		{Options{Allocators: []string{"lukv", "uniform"}, Metrics: []string{"snapkv"}, Ratios: []float64{0.8}}, []string{"full", "snapkv/uniform/0.8", "snapkv/lukv/0.8"}},
		{Options{Metrics: []string{"keydiff"}, Ratios: []float64{0.8}}, []string{"full", "keydiff/uniform/0.8"}},
	} {
		table, err := NewTable([]*Run{r}, c.o)
		require.NoError(t, err)
		require.Equal(t, c.want, rowsOf(table))
	}
}

// TestColumnOfACategory: all tasks of a category share a column.
func TestColumnOfACategory(t *testing.T) {
	r := run(t, methods([]string{"niah_single_1", "niah_single_2", "vt", "niah_multikey_1"}, "full"))
	table, err := NewTable([]*Run{r}, Options{By: ByCategory})
	require.NoError(t, err)
	var columns []string
	for _, c := range table.Columns {
		columns = append(columns, c.Name)
	}
	require.Equal(t, []string{"retrieval", "multi_hop", eval.Average}, columns)
}

// TestReferenceOfSeveralRuns: what was published stands once, after the last run of the
// same method.
func TestReferenceOfSeveralRuns(t *testing.T) {
	ref, err := ReadReference(strings.NewReader("model,allocator,metric,ratio,vt\nm,full,,0,99\nm,uniform,snapkv,0.8,50\nm,uniform,keydiff,0.8,40\n"), "r.csv")
	require.NoError(t, err)
	a, b := run(t, methods([]string{"vt"}, "full")), run(t, methods([]string{"vt"}, "full"))
	table, err := NewTable([]*Run{a, b}, Options{Reference: ref})
	require.NoError(t, err)
	require.Len(t, table.Rows, 3)
	require.Equal(t, []string{"", "", "m"}, []string{table.Rows[0].Model, table.Rows[1].Model, table.Rows[2].Model})
}

// TestAnswersAsWritten: files of answers are for people, too: nothing in them is escaped
// that JSON allows.
func TestAnswersAsWritten(t *testing.T) {
	dir, files := folder(t, methods([]string{"vt"}, "full", "snapkv/uniform/0.8")), 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".jsonl" {
			return err
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(text), "<b> & yes", path)
		require.NotContains(t, string(text), `\u00`, path)
		files++
		return nil
	}))
	require.GreaterOrEqual(t, files, 2)
	m, err := ReadMeasured(dir)
	require.NoError(t, err)
	require.Len(t, m, 1)
	require.Len(t, m[0].Answers, 2)
}
