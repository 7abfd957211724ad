// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/generator.h"

#include <algorithm>

#include "tests/differential/callbacks.h"
#include "tests/differential/texts.h"

namespace causeway::differential {
namespace {

Argument Number(uint64_t number) {
  return {ArgumentKind::kNumber, 0, 0, number, {}};
}
Argument Null() {
  return {};
}
Argument Of(ArgumentKind kind, uint64_t number) {
  return {kind, 0, 0, number, {}};
}
Argument Of(const Object* object) {
  return object == nullptr ? Null() : Of(ArgumentKind::kObject, object->id);
}

// Launches whose parameters are kept in the function: of the kernel that needs none.
bool LaunchesOldWay(const Row& row) {
  const std::string_view name = row.text();
  return name.starts_with("cuParamSet") || name == "cuFuncSetBlockShape" || name == "cuFuncSetSharedSize" ||
         name == "cuLaunch" || name.starts_with("cuLaunchGrid");
}

constexpr uint64_t kHuge[] = {uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0}, 0x7fffffff};
// Of memory: nothing that a host or a device might try to give.
constexpr uint64_t kHugeMemory[] = {uint64_t{1} << 47, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 52};

}  // namespace

Generator::Generator(World& world, const std::vector<RowPlan>& plans) : world_(world), plans_(plans) {
  for (uint32_t i = 0; i < plans.size(); ++i) {
    rows_[plans[i].theme].insert(rows_[plans[i].theme].end(), plans[i].weight, i);
    all_rows_.insert(all_rows_.end(), plans[i].weight, i);
  }
}

void Generator::Begin(uint64_t seed) {
  random_ = Random(seed);
  length_ = random_.Chance(100) ? 300 : 20 + random_.Below(160);
  for (int& theme : themes_) theme = static_cast<int>(random_.Below(kThemes));
  threads_ = random_.Chance(100);
  wrong_ = random_.Chance(700);  // some programs make no mistakes, so that long ones come far
}

const RowPlan& Generator::SomeRow() {
  if (random_.Chance(750)) {
    const auto& rows = rows_[themes_[random_.Below(3)]];
    if (!rows.empty()) return plans_[rows[random_.Below(static_cast<uint32_t>(rows.size()))]];
  }
  return plans_[all_rows_[random_.Below(static_cast<uint32_t>(all_rows_.size()))]];
}

// A row that has something to work on: most calls on what does not exist would be alike.
bool Generator::Likes(const RowPlan& plan) const {
  for (const ParameterPlan& parameter : plan.parameters) {
    if (parameter.role != Role::kHandle && parameter.role != Role::kEndedHandle) continue;
    const bool ends = parameter.role == Role::kEndedHandle;
    const bool any = std::any_of(world_.objects.begin(), world_.objects.end(), [&](const Object& object) {
      return object.alive && object.kind == parameter.handle && (object.own || !ends);
    });
    if (!any) return false;
  }
  return true;
}

Call Generator::Next(uint32_t id) {
  for (;;) {
    const RowPlan* plan = &SomeRow();
    for (int tries = 0; tries < 4 && !Likes(*plan); ++tries) plan = &SomeRow();
    const Call call = CallOf(plan, id);
    bool left_out = false;
    for (size_t i = 0; i < plan->parameters.size(); ++i) {
      left_out = left_out || (plan->parameters[i].no_null && call.arguments[i].kind == ArgumentKind::kNull);
    }
    if (!left_out) return call;
  }
}

Call Generator::CallOf(const RowPlan* plan, uint32_t id) {
  Call call;
  call.id = id;
  call.row = plan->row;
  call.thread = threads_ && random_.Chance(300) ? 1 : 0;
  stream_key_ = world_.KeyOf(0, plan->per_thread, call.thread);
  if (plan->stream >= 0) {
    const auto at = static_cast<size_t>(plan->stream);
    call.arguments[at] = Make(*plan, at, call);
    const Object* stream = world_.Find(static_cast<uint32_t>(call.arguments[at].number));
    const bool named = call.arguments[at].kind == ArgumentKind::kObject && stream != nullptr;
    if (named) stream_key_ = world_.KeyOf(stream->raw, plan->per_thread, call.thread);
  }
  for (size_t i = 0; i < plan->parameters.size(); ++i) {
    if (static_cast<int>(i) != plan->stream) call.arguments[i] = Make(*plan, i, call);
  }
  MatchCounts(*plan, call);
  return call;
}

// A list of nodes comes with its length.
void Generator::MatchCounts(const RowPlan& plan, Call& call) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (plan.parameters[i].role != Role::kNodes) continue;
    const bool list = call.arguments[i].kind == ArgumentKind::kObjects;
    for (size_t c = i + 1; c < plan.parameters.size(); ++c) {
      if (plan.parameters[c].role != Role::kCount) continue;
      const uint64_t count = list ? call.arguments[i].count : 0;
      if (call.arguments[c].number > count || random_.Chance(950)) call.arguments[c] = Number(count);
      break;
    }
  }
}

Argument Generator::Make(const RowPlan& plan, size_t i, const Call& call) {
  const ParameterPlan& parameter = plan.parameters[i];
  switch (parameter.role) {
    case Role::kNull:
      return Null();
    case Role::kStream:
    case Role::kHandle:
    case Role::kEndedHandle:
    case Role::kLaunched:
      return MakeHandle(plan, i);
    case Role::kNodes:
      return MakeNodes(plan, call);
    case Role::kAddress:
    case Role::kWord:
    case Role::kHostMemory:
    case Role::kPages:
      return MakeAddress(plan, i, call);
    case Role::kFreedAddress:
      return MakeFreed(plan);
    case Role::kText:
    case Role::kSymbol:
    case Role::kEntryPoint:
    case Role::kImage:
    case Role::kCallback:
    case Role::kCounter:
    case Role::kBuilt:
    case Role::kOut:
      return MakePointer(plan, i);
    default:
      return MakeNumber(plan, i);
  }
}

Argument Generator::MakeNumber(const RowPlan& plan, size_t i) {
  const TypeInfo& type = plan.row->parameters[i].type;
  const ParameterPlan& parameter = plan.parameters[i];
  Random& r = random_;
  const bool wild = wrong_ && !parameter.no_wild && r.Chance(15);
  switch (parameter.role) {
    case Role::kFlags:
      return Number(wild ? r.Of({0x80000000u, 0xffffffffu, 64u})
                         : r.Of({0u, 0u, 0u, 0u, 1u, 1u, 2u, 3u, 4u}));
    case Role::kCount:
      return Number(r.Of({0u, 1u, 1u, 1u, 2u, 3u}));
    case Role::kSize:
      if (wild)
        return Number(plan.effect == Effect::kAllocates ? kHugeMemory[r.Below(4)] : kHuge[r.Below(4)]);
      if (plan.effect == Effect::kAllocates)
        return Number(r.Of({1u, 100u, 4096u, 16384u, 16384u, 65536u, 1u << 20, 2u << 20, 0u}));
      return Number(r.Of({0u, 1u, 4u, 4u, 16u, 16u, 64u, 64u, 100u, 256u, 1024u, 4096u, 8192u}));
    case Role::kOffset:
      return Number(r.Of({0u, 0u, 0u, 4u, 8u, 64u}));
    case Role::kDevice:
      return Number(wild ? r.Of({1u, 0xffffffffu, 99u}) : 0);
    case Role::kEnum:
      if (wild) return Number(r.Of({0x7fffffffu, 99u, 0xffffffffu}));
      return Number(type.value_count > 0 ? static_cast<uint64_t>(type.values[r.Below(type.value_count)])
                                         : r.Below(8));
    case Role::kFloat: {
      const float value = r.Of({0.0f, 1.0f, 0.5f, -1.0f});
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      return Number(bits);
    }
    case Role::kGrid:
      return Number(wild ? r.Of({0u, 0x80000000u}) : r.Of({1u, 1u, 1u, 2u, 3u}));
    case Role::kBlock:
      return Number(wild ? r.Of({0u, 1025u, 2048u}) : r.Of({1u, 1u, 1u, 2u, 8u}));
    case Role::kShared:
      return Number(wild ? r.Of({1u << 20, 1u << 30}) : r.Of({0u, 0u, 16u, 1024u}));
    case Role::kWaited:
      return Number(0);
    case Role::kWaitFlags:
      return Number(wild ? 256u : r.Of({0u, 0u, 3u}));
    case Role::kWritten:
      return Number(r.Below(100));
    default:
      if (plan.row->Named("cuGetProcAddress"))
        return Number(r.Of({11000u, 12000u, 13000u, 13000u, 3020u, 2000u, 99000u}));
      if (wild) return Number(kHuge[r.Below(4)]);
      return Number(r.Of({0u, 0u, 1u, 1u, 2u, 3u, 4u, 7u, 8u, 16u, 64u, 100u}));
  }
}

Argument Generator::MakeHandle(const RowPlan& plan, size_t i) {
  const ParameterPlan& parameter = plan.parameters[i];
  const bool ends = parameter.role == Role::kEndedHandle;
  if (wrong_ && !parameter.no_null && random_.Chance(25)) return Null();
  if (parameter.role == Role::kStream && random_.Chance(150)) return Null();
  const bool foreign = wrong_ && random_.Chance(20);
  const bool kernels = plan.row->parameters[i].type.tag == &kTagOf<CUkernel>;
  const bool legacy_launch = LaunchesOldWay(*plan.row);
  const bool source = plan.row->parameters[i].name.starts_with("src");
  const Object* object = world_.Choose(random_, parameter.handle, [&](const Object& one) {
    if (one.foreign && !foreign) return false;
    if (ends && !one.own) return false;
    if (one.kind == HandleKind::kArray && source && !one.readable) return false;
    if (one.kind != HandleKind::kFunction) return true;
    if (kernels != one.is_kernel && !(parameter.role == Role::kLaunched && !legacy_launch)) return false;
    if (legacy_launch) return one.kernel == kIdle;
    return parameter.role != Role::kLaunched || one.kernel >= 0;
  });
  return Of(object);
}

Argument Generator::MakeNodes(const RowPlan& plan, const Call& call) {
  const Object* graph = nullptr;
  for (size_t i = 0; i < plan.parameters.size() && graph == nullptr; ++i) {
    if (call.arguments[i].kind == ArgumentKind::kObject && plan.parameters[i].handle == HandleKind::kGraph) {
      graph = world_.Find(static_cast<uint32_t>(call.arguments[i].number));
    }
  }
  Argument list = Of(ArgumentKind::kObjects, 0);
  for (auto object = world_.objects.rbegin(); object != world_.objects.rend() && list.count < 3; ++object) {
    const bool its = object->kind == HandleKind::kGraphNode && object->alive && graph != nullptr &&
                     object->parent == graph->id;
    if (its && (list.count == 0 || random_.Chance(400))) list.list[list.count++] = object->id;
  }
  return list.count == 0 ? Null() : list;
}

Argument Generator::MakeAddress(const RowPlan& plan, size_t i, const Call& call) {
  const ParameterPlan& parameter = plan.parameters[i];
  const Role role = parameter.role;
  if (wrong_ && !parameter.no_null && random_.Chance(15)) return Null();
  if (wrong_ && !parameter.no_wild && (role == Role::kAddress || role == Role::kWord) && random_.Chance(10))
    return Of(ArgumentKind::kWild, 0xdead000);
  const auto count = static_cast<uint32_t>(world_.regions.size());
  const uint32_t first = random_.Below(count);
  const bool managed = plan.row->Named("Prefetch") || plan.row->Named("Advise") || plan.row->Named("Range") ||
                       plan.row->Named("Attach");
  for (uint32_t n = 0; n < count; ++n) {
    const Region& region = world_.regions[(first + n) % count];
    bool suits = region.alive && region.usable && !(plan.lasting && region.own);
    const bool host = region.place == Place::kPageable || region.place == Place::kPinned;
    suits = suits && (role == Role::kWord ? region.place == Place::kWords : region.place != Place::kWords);
    if (role == Role::kPages) suits = suits && region.place == Place::kPageable;
    if (role == Role::kHostMemory) suits = suits && host;
    if (role == Role::kAddress)
      suits = suits && region.place != Place::kPageable && (!host || random_.Chance(200));
    if (managed && random_.Chance(900)) suits = suits && region.place == Place::kManaged;
    for (size_t a = 0; a < i && suits; ++a) {
      suits = call.arguments[a].kind != ArgumentKind::kRegion || call.arguments[a].number != region.id;
    }
    if (!suits || !world_.CanAcquire(region, stream_key_)) continue;
    Argument argument = Of(ArgumentKind::kRegion, region.id);
    argument.offset = random_.Of({0u, 0u, 0u, 4u, 64u, 1000u, 4096u});
    if (role == Role::kWord) argument.offset = random_.Of({0u, 8u, 64u});
    if (role == Role::kPages || managed) argument.offset = random_.Of({0u, 0u, 4096u});
    return argument;
  }
  return Null();
}

Argument Generator::MakeFreed(const RowPlan& plan) {
  const std::string_view name = plan.row->text();
  const bool reserved = name.starts_with("cuMemAddressFree") || name == "cuMemMap" || name == "cuMemUnmap" ||
                        name == "cuMemSetAccess";
  const Place wanted = reserved                  ? Place::kReserved
                       : name == "cuMemFreeHost" ? Place::kPinned
                                                 : Place::kDevice;
  for (const Region& region : world_.regions) {
    const bool suits =
        region.alive && region.own &&
        (region.place == wanted || (wanted == Place::kDevice && region.place == Place::kManaged));
    if (suits && random_.Chance(500)) return Of(ArgumentKind::kRegion, region.id);
  }
  return Null();
}

Argument Generator::MakePointer(const RowPlan& plan, size_t i) {
  const ParameterPlan& parameter = plan.parameters[i];
  Random& r = random_;
  const bool value = plan.row->parameters[i].type.depth == 0 && parameter.role == Role::kBuilt;
  if (wrong_ && !value && !parameter.no_null && r.Chance(15)) return Null();
  switch (parameter.role) {
    case Role::kSymbol:
      return Of(ArgumentKind::kText, kFirstSymbol + r.Below(r.Chance(900) ? 5 : kSymbols));
    case Role::kEntryPoint:
      return Of(ArgumentKind::kText, kEntryPoints + r.Below(static_cast<uint32_t>(2 * AllRows().size())));
    case Role::kImage:
      return Of(ArgumentKind::kText, r.Chance(850) ? kImage : kWrongImage);
    case Role::kText:
      return Of(ArgumentKind::kText, kFile);
    case Role::kCallback:
      return Of(ArgumentKind::kFunction, 0);
    case Role::kCounter:
      return Of(ArgumentKind::kCounter, r.Below(kCounters));
    case Role::kBuilt:
      return Of(ArgumentKind::kBuilt, r.Next() >> 40);
    default: {
      // What many functions take as the room for their answer is a few elements.
      const TypeInfo& type = plan.row->parameters[i].type;
      const bool number =
          type.base == Base::kNumber && parameter.handle == HandleKind::kNone && !parameter.allocation;
      const bool room = number && plan.row->parameters[i].name.starts_with("num");
      return Of(ArgumentKind::kOut, room                       ? r.Of({0u, 1u, 4u, 8u})
                                    : type.base == Base::kEnum ? r.Of({0u, 1u, 2u})
                                                               : 0);
    }
  }
}

}  // namespace causeway::differential
