package model

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// TestBudgetsWhileDecoding: a cut while decoding leaves every head exactly the
// target under the uniform allocator, and the heads of a layer that many on average
// under one that lets them compete; the protected first and last entries stay in
// every head (specification 7.1).
func TestBudgetsWhileDecoding(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	const target, interval, sinks, window = 30, 6, 3, 7
	for _, allocator := range []string{"uniform", "adakv", "global"} {
		for _, metric := range []string{"knorm", "keydiff", "snapkv"} {
			s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{
				Allocator:  lukv.AllocatorConfig{Name: allocator},
				Protection: &lukv.Protection{Sinks: sinks, Window: window},
				Decode:     lukv.DecodeConfig{Mode: "periodic", TargetSize: target, Interval: interval, Buffer: 16, Metric: &lukv.MetricConfig{Name: metric}},
			}})
			require.NoError(t, s.Prefill(ctx, randomTokens(50, 97, 1)))
			cuts, uneven := 0, false
			for i := 1; i <= 4*interval; i++ {
				require.NoError(t, s.Append(ctx, int32(i)))
				what := fmt.Sprintf("%s, %s, step %d", allocator, metric, i)
				past := i % interval // since the last cut
				for l := range m.cfg.Layers {
					sum := 0
					for h := range m.cfg.KVHeads {
						n := s.cache.Len(l, h)
						sum += n
						if i < interval {
							require.Equal(t, 50+i, n, what)
							continue
						}
						if allocator == "uniform" {
							require.Equal(t, target+past, n, what)
						}
						uneven = uneven || n != target+past
						pos := s.cache.Positions(l, h, nil)
						for p := range sinks {
							require.EqualValues(t, p, pos[p], "%s: a sink of layer %d head %d", what, l, h)
						}
						cut := 50 + i - past // the window at the time; snapkv's holds the queries seen
						for p := cut - min(window, interval); p < cut; p++ {
							require.Contains(t, pos, int32(p), "%s: the window of layer %d head %d", what, l, h)
						}
					}
					if i >= interval {
						require.Equal(t, m.cfg.KVHeads*(target+past), sum, what)
					}
				}
				if past == 0 {
					cuts++
				}
			}
			require.Equal(t, 4, cuts)
			require.Equal(t, 4*m.cfg.Layers, s.Stats().Cuts)
			require.Equal(t, allocator != "uniform", uneven, "%s: heads compete", allocator)
		}
	}
}
