// Vetpublic runs rlockvet over public programs that lock between processes, to show that it reports nothing false there:
//
//	make vet-public
//	make vet-public ARGS='-only gitea'
//
// rlockvet only knows calls of rlock, so each program is ported first, in a temporary folder: the calls of the library
// that it locks with become calls of rlock, by their types. programs.txt names the programs, each with its version, the
// number of calls that are ported, and the findings, which are all true. A finding that is not there fails, and so
// does one that is gone. If a release has no error in the original program, it is no finding that the port drops one.
//
// It fetches the programs, and what they import, by the go command. Nothing of them is run.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"

	"github.com/go-rlock/rlock/rlockvet"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", "..", "the folder of the repository")
	only := flag.String("only", "", "a `regexp` of the programs to check")
	keep := flag.String("keep", "", "a `folder` for the ported programs, which is not removed")
	flag.Parse()
	root, err := filepath.Abs(*dir)
	if err != nil {
		log.Fatal(err)
	}
	chosen, err := regexp.Compile(*only)
	if err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "rlockvet/internal/vetpublic/programs.txt"))
	if err != nil {
		log.Fatal(err)
	}
	rules, programs, err := parse(string(text))
	if err != nil {
		log.Fatal("programs.txt: ", err)
	}
	programs = slices.DeleteFunc(programs, func(p *program) bool { return !chosen.MatchString(p.module) })
	if len(programs) == 0 {
		log.Fatalf("programs.txt has no program %q", *only)
	}
	ok, err := checkAll(root, *keep, rules, programs)
	if err != nil {
		log.Fatal(err)
	}
	if !ok {
		os.Exit(1)
	}
}

// checkAll checks programs, and reports on the standard output.
func checkAll(root, keep string, rules []rule, programs []*program) (ok bool, err error) {
	work := keep
	if work == "" {
		if work, err = os.MkdirTemp("", "vetpublic"); err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	}
	if work, err = filepath.Abs(work); err != nil {
		return false, err
	}
	if err := writeHelper(work); err != nil {
		return false, err
	}
	locks, findings, wrong := 0, 0, 0
	for i, p := range programs {
		to := filepath.Join(work, fmt.Sprintf("program%d", i))
		got, err := p.check(root, work, to, rules)
		if err != nil {
			fmt.Printf("%s %s: %v\n", p.module, p.version, err)
			wrong++
			continue
		}
		fmt.Printf("%s %s: locks %d, left %d, findings %d\n", p.module, p.version, got.locks, len(got.left), len(got.findings))
		for _, at := range got.left {
			fmt.Println("\tleft", at)
		}
		for _, line := range p.compare(got) {
			fmt.Println("\t" + line)
			wrong++
		}
		locks += got.locks
		findings += len(got.findings)
		if keep == "" {
			if err := os.RemoveAll(to); err != nil {
				return false, err
			}
		}
	}
	fmt.Printf("%d programs, %d calls that take a lock ported, %d findings, %d differences from programs.txt\n", len(programs), locks, findings, wrong)
	return wrong == 0, nil
}

// program is a module of programs.txt.
type program struct {
	module, version string
	packages        []string
	incomplete      bool // something that it imports cannot be fetched
	locks           int
	findings        map[string]string // "file:line category", and the reason why it is true
}

// parse reads programs.txt.
func parse(text string) (rules []rule, programs []*program, err error) {
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		fail := func(err any) error { return fmt.Errorf("line %d: %v", i+1, err) }
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(programs) == 0 && words[0] != "module" {
			r, err := parseRule(words)
			if err != nil {
				return nil, nil, fail(err)
			}
			rules = append(rules, r)
			continue
		}
		if words[0] == "module" && len(words) == 3 {
			programs = append(programs, &program{module: words[1], version: words[2], findings: map[string]string{}})
			continue
		}
		p := programs[len(programs)-1]
		switch {
		case words[0] == "in" && len(words) > 1:
			p.packages = append(p.packages, words[1:]...)
		case words[0] == "locks" && len(words) == 2:
			if _, err := fmt.Sscan(words[1], &p.locks); err != nil {
				return nil, nil, fail(err)
			}
		case line == "\tincomplete":
			p.incomplete = true
		case words[0] == "true" && len(words) > 3:
			p.findings[words[1]+" "+words[2]] = strings.Join(words[3:], " ")
		default:
			return nil, nil, fail("unknown: " + line)
		}
	}
	for _, p := range programs {
		if len(p.packages) == 0 || p.locks == 0 {
			return nil, nil, fmt.Errorf("%s needs packages and locks", p.module)
		}
	}
	return rules, programs, nil
}

func parseRule(words []string) (r rule, err error) {
	r.kind = kind(words[0])
	want := map[kind]int{ofMutex: 3, ofLease: 3, ofFunc: 2}[r.kind]
	if want != len(words) {
		return r, fmt.Errorf("no rule: %q", words)
	}
	for i, pattern := range words[1:] {
		exp, err := regexp.Compile("^(?:" + pattern + ")$")
		if err != nil {
			return r, err
		}
		if i == 0 {
			r.acquire = exp
		} else {
			r.release = exp
		}
	}
	return r, nil
}

// result is what a check of a program found.
type result struct {
	locks    int
	left     []string
	findings []string // "file:line category"
	messages []string
}

// check fetches a program, ports it in a folder, and runs rlockvet there.
func (p *program) check(root, work, to string, rules []rule) (*result, error) {
	from, err := download(work, p.module+"@"+p.version)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(to); err != nil {
		return nil, err
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return nil, err
	}
	if err := require(to, map[string]string{helper: filepath.Join(work, "ported"), "github.com/go-rlock/rlock": root}); err != nil {
		return nil, err
	}
	return checkModule(to, rules, p.packages, p.incomplete)
}

// checkModule ports packages of the module in a folder, and runs rlockvet over them. They compile, before and after; or, if
// they are incomplete, they have no other errors after.
func checkModule(dir string, rules []rule, patterns []string, incomplete bool) (*result, error) {
	before, known, err := load(dir, patterns)
	if err != nil {
		return nil, err
	}
	if len(known) > 0 && !incomplete {
		return nil, fmt.Errorf("before the port: %s", known[0])
	}
	got := &result{}
	silent := map[string]bool{}
	var changed []string
	for _, pkg := range before {
		out, err := port(pkg, rules)
		if err != nil {
			return nil, err
		}
		got.locks += out.locks
		for _, at := range out.left {
			got.left = append(got.left, fmt.Sprintf("%s:%d", relative(dir, at.Filename), at.Line))
		}
		maps.Copy(silent, out.silent)
		for name, text := range out.files {
			if err := os.WriteFile(name, text, 0o644); err != nil {
				return nil, err
			}
		}
		if len(out.files) > 0 {
			changed = append(changed, pkg.PkgPath)
		}
	}
	if len(changed) == 0 {
		return nil, errors.New("nothing to port")
	}
	after, errs, err := load(dir, changed)
	if err != nil {
		return nil, err
	}
	for _, e := range errs {
		if !slices.Contains(known, e) {
			return nil, fmt.Errorf("after the port: %s", e)
		}
	}
	graph, err := checker.Analyze([]*analysis.Analyzer{rlockvet.New()}, after, nil)
	if err != nil {
		return nil, err
	}
	for _, action := range graph.Roots {
		if action.Err != nil {
			return nil, action.Err
		}
		for _, d := range action.Diagnostics {
			at := action.Package.Fset.Position(d.Pos)
			if d.Category == rlockvet.UnlockError && silent[fmt.Sprintf("%s:%d", at.Filename, at.Line)] {
				continue // of a release that has no error in the original program
			}
			got.findings = append(got.findings, fmt.Sprintf("%s:%d %s", relative(dir, at.Filename), at.Line, d.Category))
			got.messages = append(got.messages, d.Message)
		}
	}
	return got, nil
}

// load type-checks packages of the module in a folder from source, and all that they import. What is outside of the folder
// needs no bodies of functions. errs is what is wrong with the packages.
func load(dir string, patterns []string) (loaded []*packages.Package, errs []string, err error) {
	loaded, err = packages.Load(&packages.Config{
		Mode: packages.LoadAllSyntax, Dir: dir, Env: environment(),
		ParseFile: func(fset *token.FileSet, name string, text []byte) (*ast.File, error) {
			file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
			if file != nil && strings.HasPrefix(relative(dir, name), "..") {
				for _, d := range file.Decls {
					if fn, ok := d.(*ast.FuncDecl); ok {
						fn.Body = nil
					}
				}
			}
			return file, err
		},
	}, patterns...)
	for _, p := range loaded {
		for _, e := range p.Errors {
			at := regexp.MustCompile(`:\d+$`).ReplaceAllString(e.Pos, "") // the port moves columns
			errs = append(errs, at+": "+e.Msg)
		}
		p.IllTyped = false // without their bodies, other packages have imports that nothing uses
	}
	return loaded, errs, err
}

// compare returns how a result differs from programs.txt.
func (p *program) compare(got *result) (lines []string) {
	if got.locks != p.locks {
		lines = append(lines, fmt.Sprintf("locks %d, listed %d", got.locks, p.locks))
	}
	for i, f := range got.findings {
		if p.findings[f] == "" {
			lines = append(lines, "not listed: "+f+" "+got.messages[i])
		}
	}
	for f := range p.findings {
		if !slices.Contains(got.findings, f) {
			lines = append(lines, "gone: "+f)
		}
	}
	slices.Sort(lines)
	return lines
}

func relative(dir, name string) string {
	if rel, err := filepath.Rel(dir, name); err == nil {
		return filepath.ToSlash(rel)
	}
	return name
}

// download returns the folder of a module in the module cache.
func download(dir, module string) (string, error) {
	text, err := command(dir, "go", "mod", "download", "-json", module)
	var got struct{ Dir, Error string }
	if json.Unmarshal(text, &got) == nil && got.Error != "" {
		return "", errors.New(got.Error)
	}
	return got.Dir, err
}

// writeHelper writes the module that ported programs import.
func writeHelper(work string) error {
	dir := filepath.Join(work, "ported")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "go.mod"), []byte(helperModule), 0o644),
		os.WriteFile(filepath.Join(dir, "ported.go"), []byte(helperSource), 0o644))
}

// require makes a module require others that are in folders. Its own folders outside of it are not in the copy.
func require(dir string, folders map[string]string) error {
	name := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(name, text, nil)
	if err != nil {
		return err
	}
	for _, r := range slices.Clone(mod.Replace) {
		if r.New.Version != "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, r.New.Path, "go.mod")); errors.Is(err, fs.ErrNotExist) {
			if err := mod.DropReplace(r.Old.Path, r.Old.Version); err != nil {
				return err
			}
		}
	}
	for path, folder := range folders {
		if err := errors.Join(mod.AddRequire(path, "v0.0.0"), mod.AddReplace(path, "", folder, "")); err != nil {
			return err
		}
	}
	mod.Cleanup()
	if text, err = mod.Format(); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

func environment() []string {
	return append(os.Environ(), "GOFLAGS=-mod=mod -buildvcs=false", "GOWORK=off", "CGO_ENABLED=0")
}

// command runs a command and returns its standard output.
func command(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, environment()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", filepath.Base(name), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}
