#include "service/store/data_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/service/support/round_fixture.h"
#include "tests/service/support/temporary_directory.h"

namespace sparseagg::service {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::string Text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(DataDirectoryTest, Open_MissingDirectory_IsMadeWithItsFormat) {
  const TemporaryDirectory folder;
  const std::string path = folder / "a/b";
  const auto directory = DataDirectory::Open(path);
  ASSERT_THAT(directory, IsOk());
  EXPECT_EQ((*directory)->db_path(), path + "/db");
  EXPECT_EQ(Text(path + "/FORMAT"), "sparseagg data, format 3\n");
}

TEST(DataDirectoryTest, Open_AfterAnEndBetweenItsSteps_GoesOn) {
  const TemporaryDirectory folder;
  WriteFile(folder / "FORMAT.new", "spar");
  WriteFile(folder / "LOCK", "");
  std::filesystem::create_directory(folder / "lost+found");
  EXPECT_THAT(DataDirectory::Open(folder.path()), IsOk());
  EXPECT_EQ(Text(folder / "FORMAT"), "sparseagg data, format 3\n");
  EXPECT_THAT(DataDirectory::Open(folder.path()), IsOk());
}

TEST(DataDirectoryTest, Open_NewerFormat_IsRefused) {
  const TemporaryDirectory folder;
  WriteFile(folder / "FORMAT", "sparseagg data, format 4\n");
  EXPECT_THAT(DataDirectory::Open(folder.path()),
              Fails(Code::kFailedPrecondition, AllOf(HasSubstr(folder / "FORMAT"), HasSubstr("format 4'"),
                                                     HasSubstr("expected format 3"), HasSubstr("newer"))));
  EXPECT_EQ(Text(folder / "FORMAT"), "sparseagg data, format 4\n");
}

TEST(DataDirectoryTest, Upgrade_OlderFormat_BecomesThisOne) {
  const TemporaryDirectory folder;
  for (const int format : {1, 2}) {
    WriteFile(folder / "FORMAT", absl::StrCat("sparseagg data, format ", format, "\n"));
    const auto directory = DataDirectory::Open(folder.path());
    ASSERT_THAT(directory, IsOk());
    EXPECT_EQ((*directory)->format(), format);
    EXPECT_EQ(Text(folder / "FORMAT"), absl::StrCat("sparseagg data, format ", format, "\n"));
    EXPECT_THAT((*directory)->Upgrade(), IsOk());
    EXPECT_EQ(Text(folder / "FORMAT"), "sparseagg data, format 3\n");
  }
  WriteFile(folder / "FORMAT", "sparseagg data, format 0\n");
  EXPECT_THAT(DataDirectory::Open(folder.path()), HasCode(Code::kFailedPrecondition));
}

TEST(DataDirectoryTest, Open_OtherTextInFormat_IsRefused) {
  const TemporaryDirectory folder;
  WriteFile(folder / "FORMAT", "MyISAM 3\n");
  EXPECT_THAT(DataDirectory::Open(folder.path()),
              Fails(Code::kFailedPrecondition, AllOf(HasSubstr("says 'MyISAM 3'"), HasSubstr("no data directory"))));
}

TEST(DataDirectoryTest, Open_FolderWithForeignFiles_IsRefusedAndLeftAsItIs) {
  const TemporaryDirectory folder;
  WriteFile(folder / "thesis.tex", "x");
  EXPECT_THAT(DataDirectory::Open(folder.path()),
              Fails(Code::kFailedPrecondition, AllOf(HasSubstr(folder.path()), HasSubstr("'thesis.tex'"),
                                                     HasSubstr("expected an empty directory"))));
  EXPECT_FALSE(std::filesystem::exists(folder / "LOCK"));
}

TEST(DataDirectoryTest, Open_DataWithoutFormat_IsRefused) {
  for (const char* name : {"db", "chunks"}) {
    const TemporaryDirectory folder;
    std::filesystem::create_directory(folder / name);
    EXPECT_THAT(DataDirectory::Open(folder.path()), Fails(Code::kFailedPrecondition, HasSubstr("no 'FORMAT'")));
  }
}

TEST(DataDirectoryTest, Open_DirectoryInUse_IsRefusedUntilItIsFree) {
  const TemporaryDirectory folder;
  {
    const auto first = DataDirectory::Open(folder.path());
    ASSERT_THAT(first, IsOk());
    EXPECT_THAT(DataDirectory::Open(folder.path()),
                Fails(Code::kUnavailable, AllOf(HasSubstr(folder.path()), HasSubstr("another server"))));
  }
  EXPECT_THAT(DataDirectory::Open(folder.path()), IsOk());
}

TEST(DataDirectoryTest, Open_PathThatIsAFile_NamesIt) {
  const TemporaryDirectory folder;
  WriteFile(folder / "file", "x");
  const auto opened = DataDirectory::Open(folder / "file");
  EXPECT_FALSE(opened.ok());
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr(folder / "file"));
}

}  // namespace
}  // namespace sparseagg::service
