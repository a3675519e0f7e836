package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// modelOfSize writes a checkpoint of a shape, with random weights and the embedded
// model's vocabulary, and opens it.
func modelOfSize(b *testing.B, shape string) *model.Model {
	cfg, err := arch.ShapeConfig(shape)
	require.NoError(b, err)
	small, err := builtin.Open(b.Context())
	require.NoError(b, err)
	cfg.Vocab = small.Config().Vocab
	require.NoError(b, small.Close())
	dir := b.TempDir()
	files := builtin.Files()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		data, err := fs.ReadFile(files, name)
		require.NoError(b, err)
		require.NoError(b, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	config, err := json.Marshal(map[string]any{
		"model_type": cfg.Arch, "hidden_act": "silu", "torch_dtype": "bfloat16",
		"num_hidden_layers": cfg.Layers, "hidden_size": cfg.Hidden, "intermediate_size": cfg.Intermediate,
		"num_attention_heads": cfg.Heads, "num_key_value_heads": cfg.KVHeads, "head_dim": cfg.HeadDim,
		"vocab_size": cfg.Vocab, "max_position_embeddings": cfg.MaxPositions, "rms_norm_eps": cfg.NormEps,
		"rope_theta": cfg.Rope.Theta, "tie_word_embeddings": cfg.TiedEmbeddings, "bos_token_id": 1, "eos_token_id": 5,
	})
	require.NoError(b, err)
	require.NoError(b, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
	w, err := weights.Random(b.Context(), cfg, tensor.BF16, 1)
	require.NoError(b, err)
	var list []safetensors.Named
	w.Each(func(name string, x tensor.Tensor) { list = append(list, safetensors.Named{Name: name, Tensor: x}) })
	require.NoError(b, safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), list, nil))
	require.NoError(b, w.Close())
	m, err := model.Open(b.Context(), dir)
	require.NoError(b, err)
	return m
}

// BenchmarkServer answers the same requests over HTTP, as streams, and with the bare
// engine, in turn, and reports both speeds and the first as a fraction of the second. The
// reader of the streams runs on the same machine.
func BenchmarkServer(b *testing.B) {
	m := modelOfSize(b, "150m")
	defer m.Close()
	s := New(Options{})
	require.NoError(b, s.Add("m", m, engine.Options{PrefixCacheBytes: -1})) // every prompt is read anew
	v := s.models.find("m").loaded
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	defer s.Drain(context.Background())
	ts.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	const tokens = 64
	prompt := make([]int32, 64)
	for i := range prompt {
		prompt[i] = int32(7*i + 1)
	}
	sampling := v.m.DefaultSampling()
	sampling.MaxTokens, sampling.IgnoreEOS, sampling.Temperature = tokens, true, 0
	data, err := json.Marshal(object{"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "temperature": 0, "stream": true})
	require.NoError(b, err)
	together := func(n int, one func()) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for range n {
			wg.Go(one)
		}
		wg.Wait()
		return time.Since(start)
	}
	for _, n := range []int{1, 8, 32} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var bare, served time.Duration
			for b.Loop() {
				bare += together(n, func() {
					stream, err := v.e.Submit(context.Background(), engine.Request{Prompt: prompt, Sampling: sampling})
					if err != nil {
						b.Error(err)
						return
					}
					for range stream.Events() {
					}
				})
				served += together(n, func() {
					resp, err := ts.Client().Post(ts.URL+"/v1/completions", "application/json", bytes.NewReader(data))
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				})
			}
			all := float64(b.N * n * tokens)
			b.ReportMetric(all/bare.Seconds(), "engine-tokens/s")
			b.ReportMetric(all/served.Seconds(), "server-tokens/s")
			b.ReportMetric(100*bare.Seconds()/served.Seconds(), "%-of-engine")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStoredDocument asks about a document that is only on disk, as after a restart.
// Besides the time to the first token it reports its parts, measured separately in turn
// with it: loading the cache's file, the pass that reads the question, which is needed in
// any case, and the rest: what the server adds, less the time for which loading and pass
// overlap. All are medians, as is the time to the first token as a multiple of the loading
// time measured next to it.
func BenchmarkStoredDocument(b *testing.B) {
	m := modelOfSize(b, "150m")
	defer m.Close()
	dir := b.TempDir()
	var drained sync.WaitGroup // the next server uses the same folders
	begin := func() *httptest.Server {
		s := New(Options{})
		require.NoError(b, s.OpenStore(filepath.Join(dir, "documents")))
		require.NoError(b, s.Add("m", m, engine.Options{MaxBytes: 1 << 30, Store: filepath.Join(dir, "prefixes")}))
		ts := httptest.NewServer(s.Handler())
		drained.Add(1)
		ts.Config.RegisterOnShutdown(func() {
			defer drained.Done()
			s.Drain(context.Background())
		})
		return ts
	}
	end := func(ts *httptest.Server) {
		require.NoError(b, ts.Config.Shutdown(context.Background()))
		ts.Close()
		drained.Wait()
	}
	known := map[string]bool{}
	for _, text := range []struct {
		sentences int // of 15 tokens each
		removed   float64
	}{{400, 0}, {400, 0.8}, {2000, 0}, {2000, 0.8}} {
		b.Run(fmt.Sprintf("%d/%g", text.sentences, text.removed), func(b *testing.B) {
			ts := begin()
			body := mustJSON(b, object{
				"text":           strings.Repeat("One of the special magic numbers for gentle tiger is 458392. ", text.sentences),
				"kv_compression": object{"ratio": text.removed, "metric": "keydiff"},
			})
			resp, err := ts.Client().Post(ts.URL+"/v1/documents", "application/json", strings.NewReader(body))
			require.NoError(b, err)
			var doc document
			require.NoError(b, json.NewDecoder(resp.Body).Decode(&doc))
			require.Equal(b, "ready", doc.Status)
			end(ts)
			file := onlyNew(b, dir, known)
			known[file] = true
			var load, pass, first, rest []time.Duration
			var ratio []float64
			for n := 0; b.Loop(); n++ {
				// A new question each time: what was asked before is also on disk.
				ask := mustJSON(b, object{"model": "m", "document": doc.ID, "messages": []object{{"role": "user", "content": fmt.Sprint(n, "?")}}, "max_tokens": 1, "ignore_eos": true, "stream": true})
				question := questionTokens(b, begin, end, ask)
				start := time.Now()
				session, err := m.LoadSession(b.Context(), file, model.SessionOptions{})
				load = append(load, time.Since(start))
				require.NoError(b, err)
				read := session.Len()
				start = time.Now()
				require.NoError(b, session.Prefill(b.Context(), question[read:]))
				pass = append(pass, time.Since(start))
				session.Close()
				ts := begin()
				start = time.Now()
				resp, err := ts.Client().Post(ts.URL+"/v1/chat/completions", "application/json", strings.NewReader(ask))
				require.NoError(b, err)
				_, err = resp.Body.Read(make([]byte, 1))
				first = append(first, time.Since(start))
				rest = append(rest, first[n]-pass[n]-load[n])
				ratio = append(ratio, first[n].Seconds()/load[n].Seconds())
				require.NoError(b, err)
				text, err := io.ReadAll(resp.Body)
				require.NoError(b, err)
				require.Contains(b, string(text), `"finish_reason":"length"`)
				end(ts)
				require.NoError(b, os.Remove(onlyNew(b, dir, known)))
			}
			median := func(list []time.Duration) float64 {
				slices.Sort(list)
				return float64(list[len(list)/2].Microseconds()) / 1e3
			}
			slices.Sort(ratio)
			b.ReportMetric(ratio[len(ratio)/2], "first/load")
			b.ReportMetric(median(load), "load-ms")
			b.ReportMetric(median(pass), "pass-ms")
			b.ReportMetric(median(rest), "rest-ms")
			b.ReportMetric(median(first), "first-token-ms")
			b.ReportMetric(float64(doc.Cache.Bytes)/1e6, "MB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// onlyNew returns the one session in a store that is not known.
func onlyNew(b *testing.B, dir string, known map[string]bool) string {
	files, err := filepath.Glob(filepath.Join(dir, "prefixes", "*", "*.session"))
	require.NoError(b, err)
	files = slices.DeleteFunc(files, func(name string) bool { return known[name] })
	require.Len(b, files, 1)
	return files[0]
}

// questionTokens returns the prompt of a question, as a server renders it.
func questionTokens(b *testing.B, begin func() *httptest.Server, end func(*httptest.Server), ask string) []int32 {
	ts := begin()
	defer end(ts)
	resp, err := ts.Client().Post(ts.URL+"/v1/chat/completions/render", "application/json", strings.NewReader(ask))
	require.NoError(b, err)
	defer resp.Body.Close()
	var prompt struct {
		Tokens []int32 `json:"token_ids"`
	}
	require.NoError(b, json.NewDecoder(resp.Body).Decode(&prompt))
	require.NotEmpty(b, prompt.Tokens)
	return prompt.Tokens
}
