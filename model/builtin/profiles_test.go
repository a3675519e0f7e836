package builtin

import (
	"context"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
)

// TestProfilesAreMadeByThisCode makes embedded profiles again, as the command
// `lukv profile builtin --metric NAME` does, those of output errors with
// --objective output-error, and compares every budget. One profile takes several
// seconds: one of each objective is always made, the others only with
// LUKV_ALL_PROFILES set, as before a release. If a change to the code changes the
// profiles, write them anew with the command, and docs/results.md with make
// results.
func TestProfilesAreMadeByThisCode(t *testing.T) {
	if testing.Short() {
		t.Skip("makes a profile: some seconds")
	}
	ctx := context.Background()
	m, err := Open(ctx)
	require.NoError(t, err)
	defer m.Close()
	var texts []calibration.Text
	for _, c := range Calibration() {
		text := calibration.Text{Context: c.Context}
		for _, q := range c.Questions {
			text.Questions = append(text.Questions, calibration.Question{Question: q.Question, AnswerPrefix: q.AnswerPrefix})
		}
		texts = append(texts, text)
	}
	files, err := fs.Glob(profiles, "profiles/*.json")
	require.NoError(t, err)
	more, err := fs.Glob(profiles, "profiles/output-error/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	require.Equal(t, len(files), len(more), "one of each objective")
	made := map[string]bool{} // objectives
	for _, file := range append(files, more...) {
		objective, embedded := lukv.ObjectiveUtility, Profile
		if path.Dir(file) != "profiles" {
			objective, embedded = lukv.ObjectiveOutputError, OutputErrorProfile
		}
		name := strings.TrimSuffix(path.Base(file), ".json")
		few := file == "profiles/snapkv.json" || file == "profiles/output-error/keydiff.json"
		if !few && os.Getenv("LUKV_ALL_PROFILES") == "" {
			continue
		}
		made[objective] = true
		t.Run(objective+"/"+name, func(t *testing.T) {
			metric := lukv.MetricConfig{Name: name}
			want, err := embedded(metric)
			require.NoError(t, err)
			got, err := calibration.Profile(ctx, m, texts, calibration.ProfileOptions{
				Options: calibration.Options{Prompt: Prompt, Session: model.SessionOptions{}},
				Metric:  metric, Objective: objective,
			})
			require.NoError(t, err)
			require.Equal(t, want.Identity, got.Identity)
			require.Equal(t, want.OutputErrors, got.OutputErrors)
			require.Equal(t, want.QueryCenters, got.QueryCenters)
			require.Equal(t, [3]int{want.Pairs, want.MinContext, want.MaxContext}, [3]int{got.Pairs, got.MinContext, got.MaxContext})
			differ := 0
			for i := range solve.Levels {
				a, b := want.Level(i), got.Level(i)
				for l := range a {
					for k := range a[l] {
						if a[l][k] == b[l][k] {
							continue
						}
						if differ++; differ <= 5 {
							t.Errorf("level %d, layer %d, KV head %d: embedded %v, made %v", i+1, l, k, a[l][k], b[l][k])
						}
					}
				}
			}
			require.Zero(t, differ, "budgets that differ")
		})
	}
	require.Len(t, made, 2)
}
