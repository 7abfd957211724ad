// SPDX-License-Identifier: Apache-2.0
// `causeway trace`: flight records that a guest and a worker have written become JSON, whatever they hold;
// and what the command takes out of a daemon's JSON.
//
// Input: a byte of choices, the clocks, then records and the places where they lie.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "host_backend/command/command.h"
#include "host_backend/command/trace/round_trips.h"
#include "host_backend/command/trace/trace_export.h"
#include "host_backend/common/json.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

uint64_t SomeTicks(Input& input) {
  const uint8_t choice = input.Byte();
  if (choice < 8) return input.Word();
  return 1'000'000'000 + uint64_t{choice} * 100'000'000 + input.Byte() * 1000u;
}

FlightClock SomeClock(Input& input) {
  const uint64_t ticks = SomeTicks(input);
  return {ticks, input.Byte() < 240 ? ticks / 2 : input.Word()};
}

// One side: mostly records that are nearly true. Reset by the records that were written.
class Image {
 public:
  void Fill(Input& input) {
    FlightHeader& header = image_->header;
    header.version = input.Byte() < 250 ? kFlightVersion : static_cast<uint32_t>(input.Word());
    header.record_bytes = input.Byte() < 250 ? sizeof(FlightRecord) : static_cast<uint32_t>(input.Word());
    header.first = SomeClock(input);
    header.last = SomeClock(input);
    for (int records = input.Byte() % 24; records > 0; --records) {
      const uint8_t link = input.Byte();
      const uint32_t number = 1 + input.Byte() % 40u + (link > 250 ? static_cast<uint32_t>(input.Word()) : 0);
      const uint32_t place = input.Byte() < 250 ? number - 1 : input.Byte();
      FlightRecord& record = link % 4 == 0
                                 ? image_->main[place % kFlightMainRecords]
                                 : image_->channel[link % kChannelCount][place % kFlightChannelRecords];
      record.number = number;
      record.begin = SomeTicks(input);
      record.end = input.Byte() < 80 ? 0 : record.begin + input.Byte() * 100u - (link == 255 ? 1000 : 0);
      record.who = input.Byte() % 4;
      record.bytes = input.Byte() * 16u;
      record.op = static_cast<uint16_t>(input.Byte() < 250 ? input.Byte() * 3 : input.Word());
      written_.push_back(&record);
    }
  }
  void Clear() {
    for (FlightRecord* record : written_) *record = {};
    written_.clear();
  }
  std::string_view bytes(size_t count = sizeof(FlightImage)) const {
    return {reinterpret_cast<const char*>(image_.get()), count};
  }

 private:
  std::unique_ptr<FlightImage> image_ = std::make_unique<FlightImage>();
  std::vector<FlightRecord*> written_;
};

std::string Text(Input& input) {
  const auto bytes = input.Bytes(input.Byte() % 48);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void Trace(Input& input, uint8_t choice) {
  static Image guest, host;
  TraceInput trace;
  trace.guest_name = Text(input);
  trace.worker_name = Text(input);
  trace.remark = Text(input);
  trace.one_clock = (choice & 1) != 0;
  trace.now = SomeClock(input);
  guest.Fill(input);
  host.Fill(input);
  if ((choice & 6) != 2)
    trace.guest = guest.bytes((choice & 24) == 8 ? input.Word() % sizeof(FlightImage) : sizeof(FlightImage));
  if ((choice & 6) != 4) trace.host = host.bytes();
  Require(Json::accept(ChromeTrace(trace)));
  Require(!RoundTripText(trace, trace.remark).empty());
  guest.Clear();
  host.Clear();
}

void Read(Input& input) {
  const std::string key = Text(input), name = Text(input);
  const auto rest = input.Bytes(4096);
  const std::string json(reinterpret_cast<const char*>(rest.data()), rest.size());
  for (const std::string& object : command::JsonObjects(json, name)) command::StatusValue(object, "", key);
  command::StatusValue(json, name, key);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::Input input(data, size);
  const uint8_t choice = input.Byte();
  if (choice < 192) {
    causeway::fuzz::Trace(input, choice);
  } else {
    causeway::fuzz::Read(input);
  }
  return 0;
}
