// What MindSpore's headers need to know of CANN's runtime, in which an extension calls nothing: names, not layouts.
#pragma once

#include <functional>
#include <string>

#include "acl/acl_base.h"

struct aclDataBuffer;
struct aclTensorDesc;
struct aclopAttr;
struct aclmdlDataset;
struct aclmdlDesc;
struct aclrtExceptionInfo;
struct aclrtMemUceInfo;
struct aclrtPhysicalMemProp;

using aclrtCallback = void (*)(void *);
using aclrtExceptionInfoCallback = void (*)(aclrtExceptionInfo *);

enum aclMemType : int {};
enum aclSysParamOpt : int {};
enum aclrtCallbackBlockType : int {};
enum aclrtEventRecordedStatus : int {};
enum aclrtFloatOverflowMode : int {};
enum aclrtLastErrLevel : int {};
enum aclrtMemAttr : int {};
enum aclrtMemHandleType : int {};
enum aclrtMemMallocPolicy : int {};
enum aclrtRunMode : int {};
enum aclrtStreamStatus : int {};

static const int ACL_SUCCESS = 0;
