package deptest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// proofUsers are the packages that may name proofs, minters those that may make
// one.
var (
	proofUsers = []string{"metastore", "storage", "raftlog", "internal/proof/prooftest"}
	minters    = []string{"metastore", "internal/proof/prooftest"}
)

// TestMintIsClosed: package metastore alone makes proofs, and only the packages
// that demand one can name the type.
//
// Property: X1 (red: topic imported proof, with a dot; raftlog imported prooftest)
func TestMintIsClosed(t *testing.T) {
	root := filepath.Join("..", "..")
	minted := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		rel, _ := filepath.Rel(root, path)
		pkg := filepath.ToSlash(filepath.Dir(rel))
		if pkg == "internal/proof" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		test := strings.HasSuffix(path, "_test.go")
		for _, imp := range parsed.Imports {
			target, err := strconv.Unquote(imp.Path.Value)
			require.NoError(t, err)
			switch {
			case target == module+"/internal/proof/prooftest" && !test:
				t.Errorf("%s imports %s, which is for tests: ask metastore.Confirm", rel, target)
			case target != module+"/internal/proof":
			case !test && !slices.Contains(proofUsers, pkg):
				t.Errorf("%s imports %s: hand on what metastore.Confirm returned", rel, target)
			case slices.Contains(minters, pkg):
				minted[pkg] = minted[pkg] || mints(parsed, imp)
			case mints(parsed, imp):
				t.Errorf("%s mints a proof: package metastore alone may, in Confirm", rel)
			}
		}
		return nil
	})
	require.NoError(t, err)
	for _, pkg := range minters {
		require.True(t, minted[pkg], "%s mints: else this test sees nothing", pkg)
	}
}

// mints reports whether a file that imports package proof names Mint, whatever
// it calls the package.
func mints(file *ast.File, imp *ast.ImportSpec) (found bool) {
	name := "proof"
	if imp.Name != nil {
		name = imp.Name.Name
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			found = found || ok && x.Name == name && n.Sel.Name == "Mint"
		case *ast.Ident:
			found = found || name == "." && n.Name == "Mint"
		}
		return true
	})
	return found
}

// removers are the files of a node's packages that remove files, and what.
var removers = map[string]string{
	"storage/destroy.go":       "what is in quarantine, against a proof",
	"storage/journal_files.go": "journal files that no copy of the table needs",
	"storage/log_aux.go":       "side files that newer ones replaced",
	"storage/log_open.go":      "segments that the table does not vouch for",
	"storage/log_trim.go":      "segments that a committed command let go",
	"storage/logs.go":          "logs in a replica's directory that its state does not name",
	"storage/recovery.go":      "a journal that was not finished",
	"storage/reserve.go":       "ballast",
	"storage/stage.go":         "a log that was staged in vain",
	"storage/unfinished.go":    "topics' directories that were being made, with nothing but a marker",
}

// isList reports whether it is a list in memory that something is removed from.
func isList(x ast.Expr) bool {
	sel, ok := x.(*ast.SelectorExpr)
	return ok && (sel.Sel.Name == "all" || sel.Sel.Name == "used")
}

// TestWhoRemoves: files are removed where that is thought through, and nowhere
// else: what is in quarantine, and the directories of topics, in one file.
//
// Property: X1 (red: topic/reconcile_purge.go called RemoveAll)
func TestWhoRemoves(t *testing.T) {
	root := filepath.Join("..", "..")
	for pkg := range allowed {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			rel, _ := filepath.Rel(root, file)
			if _, may := removers[filepath.ToSlash(rel)]; may || strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(parsed, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if sel, ok := call.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "RemoveAll" || sel.Sel.Name == "Remove" && len(call.Args) == 1 && !isList(sel.X)) {
						t.Errorf("%s removes files: what a topic or a replica has is destroyed by storage/destroy.go, against a proof", rel)
					}
				}
				return true
			})
		}
	}
}
