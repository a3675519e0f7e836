package kernels

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAssemblyFrames compares every argument and result that assembly names, such as
// next+48(FP), with the Go declaration: vet does so too, but not inside the macros that
// most kernels are made of. The assembler's own listing has them expanded.
func TestAssemblyFrames(t *testing.T) {
	needGo(t)
	for _, arch := range []string{"amd64", "arm64"} {
		uses, faults := asmFrames(t, arch, nil)
		require.Greater(t, uses, 200, arch)
		require.Empty(t, faults, arch)
	}
}

// A wrong offset, name or width in a macro of a header is found.
func TestAssemblyFramesFindsFaults(t *testing.T) {
	needGo(t)
	const file, header = "attention_avx2_amd64.s", "attention_avx2_amd64.h"
	text, err := os.ReadFile(header)
	require.NoError(t, err)
	planted := string(text)
	for _, p := range [][2]string{
		{"MOVQ next+48(FP), BX", "MOVQ next+40(FP), BX"}, // VALUES4_AVX2
		{"MOVQ k+16(FP), DX", "MOVQ v+16(FP), DX"},       // SCORES4_AVX2
		{"VBROADCASTSS scale+64(FP)", "MOVQ scale+64(FP), AX; VBROADCASTSS scale+64(FP)"},
	} {
		require.Contains(t, planted, p[0])
		planted = strings.Replace(planted, p[0], p[1], 1)
	}
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	include := fmt.Sprintf("#include %q\n", header)
	require.Contains(t, string(text), include)
	_, faults := asmFrames(t, "amd64", map[string]string{file: strings.Replace(string(text), include, planted, 1)})
	found := strings.Join(faults, "\n")
	require.Contains(t, found, "values4F32AVX2: next+40(FP): next is at 48")
	require.Contains(t, found, "scores4F32AVX2: v+16(FP): no argument or result of that name")
	require.Contains(t, found, "scores6AVX2: scale+64(FP): MOVQ takes 8 bytes, float32 has 4")
}

func needGo(t *testing.T) {
	if testing.Short() {
		t.Skip("it asks the assembler, and is the same on every system")
	}
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
}

var (
	listedText = regexp.MustCompile(`^\S*/kernels\.(\w+) STEXT .*\basm\b.* locals=0x([0-9a-f]+)`)
	listedUse  = regexp.MustCompile(`\)\t(\w+(?:\.\w+)?)\t.*?(\w+)(?:\+(\d+))?\(FP\)`)
)

// asmFrames assembles this package for an architecture, with some files replaced, and
// returns how often its assembly names arguments and results, and where it does so wrongly.
func asmFrames(t *testing.T, arch string, replace map[string]string) (uses int, faults []string) {
	t.Helper()
	dir, err := filepath.Abs(".")
	require.NoError(t, err)
	args := []string{"build", "-asmflags=-S", "-o", os.DevNull}
	if replace != nil {
		overlay := map[string]map[string]string{"Replace": {}}
		for name, text := range replace {
			file := filepath.Join(t.TempDir(), name)
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			overlay["Replace"][filepath.Join(dir, name)] = file
		}
		data, err := json.Marshal(overlay)
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "overlay.json")
		require.NoError(t, os.WriteFile(file, data, 0o600))
		args = append(args, "-overlay", file)
	}
	build := func(args ...string) []byte {
		cmd := exec.Command("go", append(args, ".")...)
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=")
		listing, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", listing)
		return listing
	}
	listing := build(args...)
	if len(listing) == 0 { // a build cache that was trimmed has lost what was printed
		listing = build(append(args, "-a")...)
	}

	frames := goFrames(t, arch)
	name, shift := "", 0
	seen := map[string]bool{}
	for line := range strings.Lines(string(listing)) {
		if m := listedText.FindStringSubmatch(line); m != nil {
			name, shift = m[1], 0
			if arch == "amd64" { // the listing counts from the stack pointer, below frame and return address
				locals, err := strconv.ParseInt(m[2], 16, 32)
				require.NoError(t, err)
				shift = int(locals) + 8
			}
			continue
		}
		m := listedUse.FindStringSubmatch(line)
		if m == nil || frames[name] == nil {
			continue
		}
		uses++
		at := -shift
		if m[3] != "" {
			n, err := strconv.Atoi(m[3])
			require.NoError(t, err)
			at += n
		}
		fault := ""
		switch slot, ok := frames[name][m[2]]; {
		case !ok:
			fault = "no argument or result of that name"
		case slot.at != at:
			fault = fmt.Sprintf("%s is at %d", m[2], slot.at)
		case operandSize[m[1]] != 0 && operandSize[m[1]] != slot.size && !strings.Contains(line, "$"+m[2]):
			fault = fmt.Sprintf("%s takes %d bytes, %v has %d", m[1], operandSize[m[1]], slot.typ, slot.size)
		}
		if fault = fmt.Sprintf("%s: %s+%d(FP): %s", name, m[2], at, fault); !strings.HasSuffix(fault, ": ") && !seen[fault] {
			seen[fault] = true
			faults = append(faults, fault)
		}
	}
	return uses, faults
}

// operandSize is the size in memory of the operands of instructions that load and store arguments.
var operandSize = map[string]int64{
	"MOVQ": 8, "MOVD": 8, "MOVL": 4, "MOVW": 4, "MOVWU": 4, "FMOVS": 4, "FMOVD": 8,
	"VBROADCASTSS": 4, "VMOVSS": 4, "VPBROADCASTD": 4,
}

// frameField locates an argument, a result or a field of one.
type frameField struct {
	at   int
	size int64
	typ  types.Type
}

// goFrames returns the frames of all functions without a body, keyed by the names that
// assembly uses for their contents: x, s_field and, for an unnamed result, ret.
func goFrames(t *testing.T, arch string) map[string]map[string]frameField {
	t.Helper()
	ctx := build.Default
	ctx.GOOS, ctx.GOARCH, ctx.CgoEnabled, ctx.BuildTags = "linux", arch, false, nil
	pkg, err := ctx.ImportDir(".", 0)
	require.NoError(t, err)
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range pkg.GoFiles {
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	sizes := types.SizesFor("gc", arch)
	info := types.Info{Defs: map[*ast.Ident]types.Object{}}
	// Declarations of other packages do not matter here, so nothing is imported.
	conf := types.Config{Sizes: sizes, Error: func(error) {}}
	_, _ = conf.Check(pkg.Name, set, files, &info)
	frames := map[string]map[string]frameField{}
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body != nil {
				continue
			}
			frame := map[string]frameField{}
			sig := info.Defs[fn.Name].Type().(*types.Signature)
			at := layFrame(frame, sizes, sig.Params(), 0)
			layFrame(frame, sizes, sig.Results(), (at+7)&^7)
			frames[fn.Name.Name] = frame
		}
	}
	return frames
}

// layFrame adds variables to a frame from at on and returns their end.
func layFrame(frame map[string]frameField, sizes types.Sizes, vars *types.Tuple, at int64) int64 {
	for v := range vars.Variables() {
		typ, name := v.Type(), v.Name()
		if name == "" {
			name = "ret"
		}
		align := sizes.Alignof(typ)
		at = (at + align - 1) / align * align
		frame[name] = frameField{int(at), sizes.Sizeof(typ), typ}
		if s, ok := typ.Underlying().(*types.Struct); ok {
			var fields []*types.Var
			for f := range s.Fields() {
				fields = append(fields, f)
			}
			for i, off := range sizes.Offsetsof(fields) {
				f := fields[i]
				frame[name+"_"+f.Name()] = frameField{int(at + off), sizes.Sizeof(f.Type()), f.Type()}
			}
		}
		at += sizes.Sizeof(typ)
	}
	return at
}
