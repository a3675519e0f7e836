package command

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// Profiles that lukv profile made without --output are in a folder of the user's cache
// that is named after the model's fingerprint, one for each metric and objective.

// cachedProfileFolder returns the folder of a model's profiles.
func cachedProfileFolder(m *model.Model) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "lukv", "profiles", strings.ReplaceAll(m.ID(), ":", "-")), nil
}

// cachedProfileName is the name of a profile's file in its folder. A metric whose
// parameters are not its defaults shares the file of the one whose are.
func cachedProfileName(metric lukv.MetricConfig, objective string) string {
	if objective == lukv.ObjectiveUtility {
		objective = "importance"
	}
	return metric.Name + "-" + objective + ".profile"
}

// cachedProfiles returns the profiles of a model in the user's cache, those of output
// errors first. Files that cannot be read, or are of another model, are left out.
func cachedProfiles(m *model.Model) []*lukv.Profile {
	dir, err := cachedProfileFolder(m)
	if err != nil {
		return nil
	}
	paths, _ := filepath.Glob(filepath.Join(dir, "*.profile")) // the pattern is valid
	var out []*lukv.Profile
	for _, path := range paths {
		if p, err := lukv.LoadProfile(path); err == nil && p.Identity.Model == m.ID() {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b *lukv.Profile) int { return profileRank(a) - profileRank(b) })
	return out
}

func profileRank(p *lukv.Profile) int {
	if p.Identity.Objective == lukv.ObjectiveOutputError {
		return 0
	}
	return 1
}

// defaultProfile returns the profile of the model by which a cache is compressed if
// nothing is said but how much: of the metric learned if there is one, else of the default
// metric; nil if there is neither. On the embedded model both lose less than the default
// metric without a profile (docs/results.md).
func defaultProfile(m *model.Model, name string) (*lukv.Profile, error) {
	if name == builtin.Name {
		return builtin.OutputErrorProfile(lukv.MetricConfig{Name: "learned"})
	}
	cached := cachedProfiles(m)
	for _, metric := range []string{"learned", lukv.DefaultMetric} {
		for _, p := range cached {
			if p.Identity.Metric.Name == metric {
				return p, nil
			}
		}
	}
	return nil, nil
}
