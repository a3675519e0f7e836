package command

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// alwaysUsed lists the flags of each command that have an effect whatever the others.
// Every other flag must be refused in a command line of TestNoFlagIsIgnored.
var alwaysUsed = map[string]string{
	"run": "threads precision cpu cache-type max-context max-cache device gpu-layers context raw save load stats json " +
		"decode policy seed",
	"chat": "verify threads precision cpu cache-type max-context max-cache device gpu-layers load raw stats no-history decode policy " +
		"max-tokens stop temperature repetition-penalty seed",
	"profile": "threads precision cpu device gpu-layers output metric sinks window normalization objective scope solver " +
		"max-steps min-retention include-question temperature npy from-npy json",
	"eval": "threads precision cpu cache-type max-context max-cache device gpu-layers data ratio budget-tokens budget-bytes metric allocator decode compat truncate parallel out " +
		"preset no-full max-loss measure-loss sinks window limit fraction max-new-tokens match ruler-clean code-sim raw query-aware share-prefill items csv json markdown measure",
	"choose":  "document metric allocator ratio sinks window json threads precision cpu cache-type max-context max-cache device gpu-layers",
	"probe":   "output data limit max-steps threads precision cpu cache-type max-context max-cache device gpu-layers",
	"demo":    "metric ratio limit json threads precision cpu cache-type max-context max-cache device gpu-layers",
	"inspect": "json",
	"pull":    "include exclude parallel verify json",
	"bench":   "compare resume csv json markdown",
	"serve": "listen key-file host cors-origin max-body max-connections max-request-memory max-running max-queue latency max-answer answer-time lookup grace drain unload-after profile kv-compression kv-events store " +
		"threads precision cpu cache-type max-context max-cache device gpu-layers",
	"list": "json", "embed": "pooling normalize dimensions json threads precision cpu cache-type max-context max-cache device gpu-layers",
	"devices": "json", "version": "json", "convert": "type shard-size json", "quantize": "type calibrate again json",
	"tokenize": "decode json",
	"template": "user system messages tools vars name generation-prompt tokens json",
	"plot":     "html svg csv",
	"score":    "match ruler-clean code-sim csv json markdown",
	"report":   "by ratio metric allocator against reference csv json latex",
}

// TestNoFlagIsIgnored uses each flag where it would have no effect.
func TestNoFlagIsIgnored(t *testing.T) {
	dir := t.TempDir()
	_, context := sample(t, "niah_single_2", 256)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	session := filepath.Join(dir, "saved.session")
	ok(t, "run", "builtin", "-c", context, "--save", session, "--ratio", "0.3")
	uniform := write("uniform.json", (&lukv.Policy{Ratio: 0.5}).String())
	npy := write("x.npy", "")
	refused := map[string]bool{}
	refuse := func(args ...string) {
		t.Helper()
		code, out, msg := invoke(t, "a question\n", args...)
		assert.Equal(t, exitUsage, code, "lukv %s: %s", strings.Join(args, " "), msg)
		assert.Empty(t, out)
		assert.Equal(t, 1, strings.Count(msg, "\n"), msg)
		assert.Contains(t, msg, "(see lukv "+args[0]+" --help)")
		for _, a := range args {
			if name, isFlag := strings.CutPrefix(a, "--"); isFlag {
				name, _, _ = strings.Cut(name, "=")
				if strings.Contains(msg, "--"+name) {
					refused[args[0]+" "+name] = true
				}
			}
		}
	}
	for _, command := range []string{"run", "chat"} {
		refuse(command, "builtin", "--profile=x", "--ratio=0.5")
		refuse(command, "builtin", "--profile=x", "--ratio=0.5", "--allocator=adakv")
		refuse(command, "builtin", "--profile=x", "--policy", uniform)
		refuse(command, "builtin", "--profile=x", "--ratio=0.5", "--preset=adakv")
		for _, flag := range []string{"--preset=kvpress", "--metric=tova", "--allocator=adakv", "--profile=x", "--compat", "--sinks=1", "--window=3"} {
			refuse(command, "builtin", flag)
		}
		refuse(command, "builtin", `--decode={"mode":"streaming","target_size":50}`, "--metric=tova")
		refuse(command, "builtin", "--measure-loss")
		refuse(command, "builtin", "--max-loss=0.1", "--measure-loss")
		refuse(command, "builtin", "--exact")
		refuse(command, "builtin", "--ratio=0.5", "--draft-tokens=3")
		refuse(command, "builtin", "--ratio=0.5", "--exact", "--measure-loss")
		for _, flag := range []string{"--ratio=0.5", "--budget-tokens=5", "--budget-bytes=1MiB", "--max-loss=0.1"} {
			refuse(command, "builtin", "--load", session, flag)
			refuse(command, "builtin", flag)
		}
		for _, flag := range []string{"--top-k=3", "--top-p=0.5", "--min-p=0.1"} {
			refuse(command, "builtin", "--temperature=0", flag)
		}
	}
	refuse("chat", "builtin", "--load", session, "--system=Be brief")
	refuse("chat", "builtin", "--keep-turns=2")
	refuse("chat", "builtin", "--max-loss=0.1", "--keep-turns=2")
	refuse("chat", "builtin", "--ratio=0.5", "--exact", "--keep-turns=2")
	refuse("run", "builtin", "--load", session, "--system=Be brief", "x")
	refuse("run", "builtin", "--load", session, "--policy", uniform, "x")
	for _, flag := range []string{
		"--answer-prefix=x", "--max-tokens=3", "--stop=x", "--temperature=1", "--top-k=3", "--repetition-penalty=2", "--seed=3",
	} {
		refuse("run", "builtin", "-c", context, "--save", session, flag)
	}
	refuse("run", "builtin", "--verify", "x")
	refuse("run", "builtin", "--trace=x", "x")
	refuse("run", "builtin", "--load", session, "--trace=x", "x")
	refuse("run", "builtin", "-c", context, "--ratio=0", "--trace=x", "x")
	refuse("run", "builtin", "-c", context, "--budget-tokens=99999", "--trace=x", "x")
	refuse("run", "builtin", "-c", context, "--ratio=0.5", "--trace=-", "x")
	refuse("run", "builtin", "-c", context, "--ratio=0.5", "--save=same", "--trace=same", "x")
	refuse("run", "builtin", "--logprobs=2", "x")
	refuse("run", "builtin", `--decode={"mode":"h2o"}`, "--lookup", "x")
	refuse("run", "builtin", `--decode={"mode":"h2o"}`, "--huge-pages", "x")
	refuse("run", "builtin", "-c", context, "--ratio=0.5", "--huge-pages", "x")
	refuse("run", "builtin", "-c", context, "--save=-", "x")
	refuse("run", "builtin", "-c", context, "--save=-", "--json")

	refuse("profile", "builtin", "-o", dir+"/p", "--template")
	refuse("profile", "builtin", "-o", dir+"/p", "--top-p=0.5")
	refuse("profile", "builtin", "-o", dir+"/p", "--seed=5")
	refuse("profile", "builtin", "-o", dir+"/p", "--weights=span")
	for _, flag := range []string{
		"--limit=1", "--texts=1", "--text=x", "--questions=x", "--data=x", "--template", "--cache-type=f32", "--max-context=9", "--max-cache=9", "--loss-map",
	} {
		refuse("profile", "builtin", "-o", dir+"/p", "--from-npy", npy, flag)
	}
	refuse("choose", "builtin", "-d", context, "--raw")
	refuse("choose", "builtin", "-d", context, "--profile=x")
	refuse("eval", "builtin", "--seed=3")
	refuse("eval", "builtin", "--profile=x")
	refuse("eval", "builtin", "--memory=1GiB")
	refuse("eval", "builtin", "--reference-cache=bf16")
	refuse("eval", "builtin", "--reference-model=builtin")
	for _, flag := range []string{"--out=x", "--match=all", "--ruler-clean=none", "--code-sim=indel", "--no-full", "--parallel=2", "--memory=1GiB"} {
		refuse("eval", "builtin", "--measure=kl", flag)
	}
	for _, flag := range []string{"--longbench-config=x", "--longbench-e", "--max-gen=official"} {
		refuse("eval", "builtin", flag)
	}
	refuse("report", "run", "--reference-model=x")
	refuse("report", "run", "--json", "--ci")
	refuse("report", "run", "--csv", "--against=x")
	refuse("report", "run", "--latex", "--against=x")
	refuse("demo", "--texts=9")
	refuse("probe", "builtin", "-o", dir+"/p", "--raw")

	for _, flag := range []string{"--ratio=0.5", "--svg=x", "--nearest", "--positions"} {
		refuse("inspect", "builtin", flag)
		refuse("inspect", filepath.Join(checkpoint(t, nil), "model.safetensors"), flag)
	}
	refuse("inspect", builtinProfileFile(t), "--positions")
	refuse("inspect", session, "--verify")
	refuse("inspect", session, "--nearest")
	refuse("inspect", session, "--ratio=0.5")
	refuse("inspect", session, "--tensors")

	for _, flag := range []string{
		"--shape=150m", "--weights=f16", "--threads=1", "--precision=f32", "--cpu=portable", "--cache-type=f32", "--device=broken", "--gpu-layers=1",
		"--pp=1", "--tg=1", "--depth=1", "--batch=1", "--reps=1", "--max-memory=1", "--ratio=0.5", "--budget-tokens=5", "--budget-bytes=1MiB",
		"--metric=tova", "--allocator=adakv", "--profile=x",
	} {
		refuse("bench", "--compare", "a.json", "b.json", flag)
	}
	refuse("bench", "builtin", "--weights=f16")
	refuse("bench", "builtin", "--allocator=adakv")
	refuse("bench", "builtin", "--ratio=0.5", "--profile=x")
	refuse("bench", "builtin", "--pp=5", "--batch=5")

	refuse("serve", "builtin", "--insecure")
	refuse("serve", "builtin", "--insecure", "--max-cache", "1MiB", "--kv-events", "127.0.0.1:0")
	refuse("serve", "builtin", "--kv-events-replay", "127.0.0.1:0")
	refuse("serve", "builtin", "--kv-events-name", "10.0.0.1:8000")
	refuse("serve", "builtin", "--log-format=json", "--quiet")
	refuse("serve", "builtin", "--max-memory=1GiB")
	refuse("serve", "builtin", "--store-bytes=1GiB")
	refuse("serve", "builtin", "--verify")
	refuse("serve", "builtin", "--tls-cert=x")
	refuse("serve", "builtin", "--tls-key=x")

	refuse("tokenize", "builtin", "--skip-special", "x")
	for _, flag := range []string{"--add-special", "--special-as-text", "--count"} {
		refuse("tokenize", "builtin", "--decode", flag, "1")
	}

	parser, err := newParser(new(cli))
	require.NoError(t, err)
	for _, command := range parser.Model.Children {
		if command.Hidden {
			continue
		}
		always := strings.Fields(alwaysUsed[command.Name])
		for _, flag := range command.Flags {
			assert.True(t, slices.Contains(always, flag.Name) || refused[command.Name+" "+flag.Name],
				"lukv %s --%s: must have an effect always, or be refused where it has none", command.Name, flag.Name)
		}
	}
}

// A seed where nothing is drawn is not an error, but is noted.
func TestSeedWithoutDrawing(t *testing.T) {
	o := command(t, "run", "builtin", "--seed", "3", "--max-tokens", "2", "x")
	assert.Equal(t, exitOK, o.code)
	assert.Contains(t, o.err, "--seed has no effect")
	assert.NotContains(t, command(t, "run", "builtin", "--seed", "3", "--temperature", "1", "--max-tokens", "2", "x").err, "no effect")
}

// TestLoadedPolicy: a loaded context reports how it was compressed, with every
// parameter, and saving it again keeps that.
func TestLoadedPolicy(t *testing.T) {
	_, context := sample(t, "niah_single_2", 256)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	made := decode[runResult](t, ok(t, "run", "builtin", "-c", context, "--ratio", "0.4", "--metric", "keydiff", "--allocator", "lukv", "--save", first, "--json"))
	require.NotNil(t, made.Policy)
	assert.NotEmpty(t, made.Policy.ProfileDigest)
	assert.NotNil(t, made.Policy.Protection, "defaults are written out")
	assert.NotEmpty(t, made.Policy.Rounding.Heads)
	loaded := decode[runResult](t, ok(t, "run", "builtin", "--load", first, "--save", second, "--json", "--max-tokens", "2", "x"))
	assert.Equal(t, made.Policy, loaded.Policy)
	again := decode[runResult](t, ok(t, "run", "builtin", "--load", second, "--json", "--max-tokens", "2",
		"--decode", `{"mode":"periodic","target_size":64}`, "x"))
	want := *made.Policy
	want.Decode = again.Policy.Decode
	assert.Equal(t, &want, again.Policy, "the context's policy, and the compression while decoding of now")
	assert.Equal(t, 64, again.Policy.Decode.TargetSize)
	assert.NotNil(t, again.Policy.Decode.Metric)

	text := command(t, "run", "builtin", "--load", second, "--stats", "--max-tokens", "2", "x")
	assert.Contains(t, text.err, "policy    "+made.Policy.String())
	assert.Equal(t, made.Policy, decode[cacheInfo](t, ok(t, "inspect", second, "--json")).Policy)
}

// TestStandardOutput: - is standard output.
func TestStandardOutput(t *testing.T) {
	_, context := sample(t, "niah_single_2", 256)
	dir := t.TempDir()
	file, piped := filepath.Join(dir, "file"), filepath.Join(dir, "piped")
	ok(t, "run", "builtin", "-c", context, "--save", file)
	out := ok(t, "run", "builtin", "-c", context, "--save", "-")
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.True(t, string(want) == out, "the same bytes")
	require.NoError(t, os.WriteFile(piped, []byte(out), 0o600))
	assert.Equal(t, "session", decode[cacheInfo](t, ok(t, "inspect", piped, "--json")).Kind)
	picture := ok(t, "inspect", piped, "--svg", "-")
	assert.True(t, strings.HasPrefix(picture, "<svg"), picture)
	assert.True(t, strings.HasSuffix(strings.TrimSpace(picture), "</svg>"))
}
