package documents_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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
