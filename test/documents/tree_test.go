package documents_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// largest is how long a file of the repository may be. What is longer is a program or the result of a build.
const largest = 1_000_000

// programs has what an executable file begins with, on Linux, macOS and Windows.
var programs = map[string]string{
	"\x7fELF":          "ELF",
	"\xcf\xfa\xed\xfe": "Mach-O",
	"\xca\xfe\xba\xbe": "Mach-O or Java class",
	"MZ":               "PE",
}

// unfit says why a file does not belong in the repository; "" if it does.
func unfit(name string) (string, error) {
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	if info.Size() > largest {
		return fmt.Sprintf("%d bytes long, the bound is %d", info.Size(), largest), nil
	}
	content, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	for magic, format := range programs {
		if bytes.HasPrefix(content, []byte(magic)) {
			return "a program (" + format + ")", nil
		}
	}
	return "", nil
}

// tracked returns the files of the repository; where there is none, as in a downloaded module, or no git, all files.
func tracked(t *testing.T, root string) (names []string) {
	t.Helper()
	git, missing := exec.LookPath("git")
	if _, err := os.Stat(filepath.Join(root, ".git")); err == nil && missing == nil {
		list := exec.Command(git, "-c", "safe.directory=*", "ls-files", "-z")
		list.Dir = root
		out, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
			if _, err := os.Lstat(filepath.Join(root, name)); err == nil { // deleted, and not yet committed
				names = append(names, name)
			}
		}
		return names
	}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", ".site", "target"}, entry.Name()): // the last is Maven's
			return fs.SkipDir
		case !entry.IsDir():
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestNoProgramsInTheRepository(t *testing.T) {
	const root = "../.."
	names := tracked(t, root)
	if len(names) < 300 {
		t.Fatalf("found %d files only", len(names))
	}
	for _, name := range names {
		if why, err := unfit(filepath.Join(root, name)); why != "" || err != nil {
			t.Error(name, why, err)
		}
	}
}

func TestProgramsAndLongFilesAreUnfit(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for want, content := range map[string][]byte{
		fmt.Sprintf("%d bytes long, the bound is %d", largest+1, largest): make([]byte, largest+1),
		"a program (ELF)": append([]byte("\x7fELF"), program[4:largest]...),
		"":                []byte("package rlock\n"),
	} {
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, content, 0o755); err != nil {
			t.Fatal(err)
		}
		if why, err := unfit(name); why != want || err != nil {
			t.Errorf("got %q, %v, want %q", why, err, want)
		}
	}
}

// Each script and tool of the repository, and each target of its Makefile, that a workflow calls is there.
func TestWorkflowsCallWhatIsThere(t *testing.T) {
	const root = "../.."
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	workflows, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil || len(workflows) < 2 {
		t.Fatal(workflows, err)
	}
	calls := 0
	for _, workflow := range workflows {
		text, err := os.ReadFile(workflow)
		if err != nil {
			t.Fatal(err)
		}
		for _, script := range regexp.MustCompile(`(?m)^ *- run:.* (\.ci/\w+)$`).FindAllStringSubmatch(string(text), -1) {
			calls++
			if info, err := os.Stat(filepath.Join(root, script[1])); err != nil || info.Mode()&0o100 == 0 {
				t.Errorf("%s calls %s: %v", workflow, script[1], err)
			}
		}
		for _, tool := range regexp.MustCompile(`(?m)^ *- run: cd tools && go run \./(\w+) `).FindAllStringSubmatch(string(text), -1) {
			calls++
			if _, err := os.Stat(filepath.Join(root, "tools", tool[1], "main.go")); err != nil {
				t.Errorf("%s runs tools/%s: %v", workflow, tool[1], err)
			}
		}
		for _, target := range regexp.MustCompile(`(?m)^ *- run: make (\w+)$`).FindAllStringSubmatch(string(text), -1) {
			calls++
			if !strings.Contains(string(makefile), "\n"+target[1]+": ## ") {
				t.Errorf("%s calls make %s, which is not in the Makefile", workflow, target[1])
			}
		}
	}
	if calls < len(workflows) {
		t.Errorf("found %d calls in %d workflows", calls, len(workflows))
	}
}

// ARCHITECTURE.md names each package below internal that is not for tests, and no file that is gone; it and CONTRIBUTING.md
// are short.
func TestArchitectureNamesWhatIsThere(t *testing.T) {
	const root = "../.."
	bounds := map[string]int{"ARCHITECTURE.md": 1300, "CONTRIBUTING.md": 1050}
	var page string
	for name, bound := range bounds {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if words := len(strings.Fields(string(text))); words > bound {
			t.Errorf("%s has %d words; %d are the bound", name, words, bound)
		}
		if name == "ARCHITECTURE.md" {
			page = string(text)
		}
	}
	named := 0
	for _, m := range regexp.MustCompile("`((?:[a-z]+/)*[a-z]+\\.(?:go|lua|pml))`").FindAllStringSubmatch(page, -1) {
		named++
		if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
			t.Errorf("ARCHITECTURE.md names %s: %v", m[1], err)
		}
	}
	if named < 20 {
		t.Errorf("found %d files only", named)
	}
	forTests := []string{"faultproxy", "locktest", "loopback", "modeltest", "recording", "redistest", "sim", "sqltest", "telemetry"}
	packages, err := os.ReadDir(filepath.Join(root, "internal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		if !slices.Contains(forTests, p.Name()) && !strings.Contains(page, "internal/"+p.Name()) {
			t.Errorf("ARCHITECTURE.md does not name internal/%s", p.Name())
		}
	}
}
